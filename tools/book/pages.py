"""The generated parts of the pages: task tables and the table of days from course.toml, results, flags."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Day
from tiny_llm_lab.runtime.checkout import text_of
from tools.book.macs import macs_table
from tools.book.page import markdown_table, read_pages, with_generated
from tools.book.request_fields import fields_table
from tools.book.results import asked_table, read_results, results_page
from tools.book.signatures import Signatures
from tools.commands import EVERY

# The text of a page that has tasks but no chapter yet.
_NO_CHAPTER = "It comes later."
# Lines of debugged code, for somebody who has not written such code before.
_LINES_AN_HOUR = 30
_SHOWN_MISTAKES = 3  # of a task


def _commands(_: str) -> str:
    """Every command and its flags."""
    return "\n".join(map(_section, EVERY))


def _section(name: str) -> str:
    module, parser = EVERY.load(name), EVERY.parser(name)
    rows = list(_rows(parser))
    table = ["| flag | meaning |\n| --- | --- |", *rows, ""] if rows else []
    given = getattr(module, "EXAMPLES", ())
    examples = [f"- `{f'./pdmw run {name} {line}'.rstrip()}`: {about}" for line, about in given]
    return "\n".join([f"## {name}\n", f"{module.HELP}\n", *table, *([*examples, ""] if examples else [])])


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # argparse has no public way to list them
        if argparse.SUPPRESS in (action.help, action.dest) or action.dest == "help":
            continue
        flags = [f"`{flag}`" for flag in action.option_strings]
        names = ", ".join(flags) or f"`{action.metavar or action.dest}`"
        values = "" if action.nargs == 0 or not flags else f" {_values(action)}"
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        if "--threads" in action.option_strings:  # the one default that differs between machines
            text = text.replace(f"default: {action.default})", "default: one per core)")
        yield f"| {names}{values} | {text.replace('|', chr(92) + '|')} |"


def _values(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is not None or action.choices is None:
        return action.metavar or action.dest.upper()
    return " or ".join(f"`{choice}`" for choice in action.choices)


def book_folder(course: Course) -> Path:
    """Where the book and its settings are."""
    return course.root / "book"


def stale_pages(course: Course) -> dict[Path, str]:
    """Pages whose generated parts are stale, each with its new text."""
    results, signatures = read_results(course.root), Signatures(course)
    parts: dict[str, Callable[[str], str]] = {
        "tasks": lambda day: task_table(course.day(day)),
        "signatures": lambda day: signatures.shown(course.day(day)),
        "days": lambda _: days_table(course),
        "hours": lambda day: hours(course, day),
        "mistakes": lambda day: mistakes_list(course, day),
        "commands": _commands,
        "results": partial(asked_table, results),
        "fields": lambda _: fields_table(),
        "macs": lambda _: macs_table(),
    }
    right = {page.path: with_generated(page.text, parts) for page in read_pages(course)}
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


def hours(course: Course, day: str = "") -> str:
    """How long a day takes, or all days together, from the lines of their answers."""
    if day:
        lines = _lines(course.day(day))
        return f"*About {_in_hours(lines)}: {lines} lines to write.*"
    lines = sum(map(_lines, course.days))
    return f"All days together are {lines:,} lines, about {_in_hours(lines)}."


def mistakes_list(course: Course, day: str) -> str:
    """The first known mistakes of each task of a day, folded."""
    says: dict[str, list[str]] = {task.id: [] for task in course.day(day).tasks}
    for mistake in course.mistakes():
        if mistake.task in says:
            says[mistake.task].append(mistake.says)
    listed = [f"- {task}: {'; '.join(found[:_SHOWN_MISTAKES])}" for task, found in says.items() if found]
    return "\n".join(["<details><summary>Common mistakes</summary>\n", *listed, "\n</details>"])


def _lines(day: Day) -> int:
    return sum(task.lines for task in day.tasks)


def _in_hours(lines: int) -> str:
    count = max(1, round(lines / _LINES_AN_HOUR))
    return "an hour" if count == 1 else f"{count} hours"


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
    """Days without a page, without a place in the table of contents, or whose pages lack the task table."""
    source, signatures = book_folder(course) / "src", Signatures(course)
    contents = (source / "SUMMARY.md").read_text(encoding="utf-8")
    found = []
    for day in course.days:
        texts = {name: text_of(source / name) for name in day.pages}
        text = "".join(texts.values())
        if missing := [name for name in day.pages if not texts[name]]:
            found.append(f"course.toml: day {day.id} has no chapter: book/src/{missing[0]} is missing")
        elif f"<!-- tasks: {day.id} -->" not in text:
            marks = f"<!-- tasks: {day.id} --> and <!-- end of tasks -->"
            found.append(f"{day.chapter}: no task table: add the lines {marks}")
        elif signatures.is_needed(day) and f"<!-- signatures: {day.id} -->" not in text:
            marks = f"<!-- signatures: {day.id} --> and <!-- end of signatures -->"
            found.append(f"{day.chapter}: it does not show what it adds: add the lines {marks}")
        unlisted = [name for name in day.pages if f"({name})" not in contents]
        found += [f"SUMMARY.md: day {day.id} is not listed: link to {name}" for name in unlisted]
    return found


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
