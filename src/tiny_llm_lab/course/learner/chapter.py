"""The place of a task in the book: its day's page, and the section on that page."""

import re
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.runtime.checkout import text_of

_PAGES = Path("book") / "src"


def chapter_of(course: Course, task: Task) -> str:
    """A page of a task's day from the root on, with the anchor of the task's section where one has it."""
    pages = [_PAGES / name for name in course.day(task.day_id).pages]
    section = rf"^#+ +(Tasks? (?:[^:\n]* )?{re.escape(task.id)}\b.*)$"
    for page in pages:
        if match := re.search(section, text_of(course.root / page), re.MULTILINE):
            return f"{page.as_posix()}#{_anchor(match[1])}"
    return pages[0].as_posix()


def end_of_week(course: Course, day: Day) -> str | None:
    """The page "what you have built" for the last day of a week that has one."""
    week = day.id.partition(".")[0]
    page = _PAGES / f"week{week}-end.md"
    is_last = course.week(int(week))[-1] == day
    return page.as_posix() if is_last and (course.root / page).exists() else None


def _anchor(heading: str) -> str:
    """The id that mdBook gives a heading."""
    kept = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"\s", "-", kept)
