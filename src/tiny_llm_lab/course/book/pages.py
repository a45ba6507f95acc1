"""The generated parts of the pages: task tables and the table of days from course.toml, results, flags."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tiny_llm_lab.course.book.commands import with_commands
from tiny_llm_lab.course.book.macs import with_macs
from tiny_llm_lab.course.book.page import markdown_table, read_pages
from tiny_llm_lab.course.book.results import read_results, results_page, with_results
from tiny_llm_lab.course.book.signatures import Signatures
from tiny_llm_lab.course.manifest import Course, Day
from tiny_llm_lab.runtime.checkout import text_of

_TASKS = re.compile(r"(<!-- tasks: (?P<day>[\d.]+) -->\n).*?(<!-- end of tasks -->)", re.DOTALL)
_DAYS = re.compile(r"(<!-- days -->\n).*?(<!-- end of days -->)", re.DOTALL)
_SIGNATURES = re.compile(
    r"(<!-- signatures: (?P<day>[\d.]+) -->\n).*?(<!-- end of signatures -->)", re.DOTALL
)
# What a page says that has tasks but no text yet.
_NO_CHAPTER = "It comes later."


def book_folder(course: Course) -> Path:
    """Where the book and its settings are."""
    return course.root / "book"


def stale_pages(course: Course) -> dict[Path, str]:
    """Pages whose generated parts are not right, each with its right text."""
    results, signatures = read_results(course.root), Signatures(course)
    right = {}
    for page in read_pages(course):
        text = with_commands(with_results(_with_tables(page.text, course, signatures), results))
        right[page.path] = with_macs(text)
    right[course.root / "results" / "README.md"] = results_page(results)
    return {path: text for path, text in right.items() if text_of(path) != text}


def task_table(day: Day) -> str:
    """The tasks of a day as a Markdown table."""
    rows = []
    for task in day.tasks:
        own = [symbol for name in task.files or ("",) for symbol in task.symbols_in(name)]
        parts = [_listed(own), *(["extend " + _listed(task.grows)] if task.grows else [])]
        names = "<br>".join(filter(None, parts))
        files = "<br>".join(f"`{name}`" for name in (*task.files, task.kernel) if name)
        rows.append([task.id, task.title, names, files, str(task.lines or "")])
    titles = ("Task", "About", "You write", "File", "Lines")
    return markdown_table(titles, (*["---"] * 4, "--:"), rows)


def days_table(course: Course) -> str:
    """The days: what each adds to which folders, in which languages, and whether it has its chapter."""
    rows = []
    for day in course.days:
        files = [name for task in day.tasks for name in (task.file, task.kernel) if name]
        folders = dict.fromkeys(f"`{name.rpartition('/')[0]}/`" for name in files)
        endings = {"C++": (".cpp", ".h"), "Metal": (".metal",)}
        languages = [name for name, ends in endings.items() if any(file.endswith(ends) for file in files)]
        text = text_of(book_folder(course) / "src" / day.chapter)
        page = "missing" if not text else "tasks only" if _NO_CHAPTER in text else "chapter"
        rows.append([day.id, day.title, ", ".join(folders), ", ".join(languages), page])
    return markdown_table(("Day", "Title", "Folders", "Besides Python", "Page"), ["---"] * 5, rows)


def missing_chapters(course: Course) -> list[str]:
    """Days without a page, without a place in the table of contents, or whose page lacks the task table."""
    source, signatures = book_folder(course) / "src", Signatures(course)
    contents = (source / "SUMMARY.md").read_text(encoding="utf-8")
    found = []
    for day in course.days:
        page = source / day.chapter
        text = text_of(page)
        if not text:
            found.append(f"course.toml: day {day.id} has no chapter: book/src/{day.chapter} is missing")
        elif f"<!-- tasks: {day.id} -->" not in text:
            marks = f"<!-- tasks: {day.id} --> and <!-- end of tasks -->"
            found.append(f"{day.chapter}: no task table: add the lines {marks}")
        elif signatures.is_needed(day) and f"<!-- signatures: {day.id} -->" not in text:
            marks = f"<!-- signatures: {day.id} --> and <!-- end of signatures -->"
            found.append(f"{day.chapter}: it does not show what it adds: add the lines {marks}")
        if f"({day.chapter})" not in contents:
            found.append(f"SUMMARY.md: day {day.id} is not listed: link to {day.chapter}")
    return found


def _with_tables(text: str, course: Course, signatures: Signatures) -> str:
    def filled(table: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        return lambda match: f"{match[1]}\n{table(match)}\n{match[match.lastindex or 0]}"

    text = _TASKS.sub(filled(lambda match: task_table(course.day(match["day"]))), text)
    text = _SIGNATURES.sub(filled(lambda match: signatures.shown(course.day(match["day"]))), text)
    return _DAYS.sub(filled(lambda _: days_table(course)), text)


def _listed(names: Sequence[str]) -> str:
    """Names as code, the methods of a class behind it: `A`: `x`, `y`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition(".")
        groups.setdefault(owner, []).append(f"`{method}`")
    listed = (
        f"`{owner}`: {', '.join(found)}" if owner else ", ".join(found) for owner, found in groups.items()
    )
    return "; ".join(listed)
