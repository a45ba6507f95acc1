"""The start of every learner's command: the course, the record, the code, and the state of each task."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.course.manifest import Course, Day, Task, load_course
from tiny_llm_lab.course.record.record import Record, load_record
from tiny_llm_lab.course.record.standing import Standing, State, standing
from tiny_llm_lab.course.record.task_sources import TaskSources
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.types import UserError

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


@dataclass(frozen=True)
class Desk:
    """One look at a learner's clone."""

    course: Course
    record: Record
    sources: TaskSources
    standing: Standing

    def where(self, task: Task) -> str:
        """The file and line of a task's first unwritten part."""
        place = self.sources.first_place(task)
        return f"{place.path.relative_to(self.course.root).as_posix()}:{place.line}"

    def task_or_next(self, name: str | None, example: str) -> Task:
        """The task with this id, or the next one. Raises UserError with an `example` where none is."""
        if name is not None:
            return named_task(self.course, name)
        if self.standing.next_task is None:
            raise UserError(f"all Python tasks have passed: name a task, such as {program()} {example}")
        return self.standing.next_task


def open_desk(course: Course | None = None) -> Desk:
    """Read everything; reports an unreadable record on stderr."""
    course = load_course() if course is None else course
    record, complaint = load_record(course.root)
    if complaint:
        log(complaint)
    sources = TaskSources(course)
    return Desk(course, record, sources, standing(course, record, sources))


def named_task(course: Course, name: str) -> Task:
    """The task with an id such as 1.1.2. Raises UserError with the nearest one for anything else."""
    day = next((day for day in course.days if day.id == name), None)
    if day is not None:
        listed = ", ".join(task.id for task in day.tasks)
        raise UserError(f"{name} is a day: choose one of its tasks, {listed}")
    return course.task(name)


class IsPassed(Protocol):
    """Says whether a learner's answer to a task passes."""

    def __call__(self, task: Task) -> bool: ...


def passes_now(desk: Desk) -> IsPassed:
    """By the record where it knows this very code, or else by running the task's tests (a few seconds)."""

    def is_passed(task: Task) -> bool:
        state = desk.standing.state(task)
        if state is State.PASSED:
            return True
        if state is State.TODO and desk.sources.has_own_parts(task):
            return False
        files = desk.course.test_files([task])
        command = [*pytest_command("mine"), "--task", task.id, "-q", *files]
        root = desk.course.root
        done = subprocess.run(command, cwd=root, env=environment(root / "src"), capture_output=True)
        return bool(files) and done.returncode == 0

    return is_passed
