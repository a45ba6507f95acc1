"""Generated parts of the book's pages: tables, signatures, and the fields of requests."""

import argparse
import ast
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from tiny_llm_lab.course import exercises
from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.course.source import Function, Source, import_lines, starter_source
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.messages import MessagesRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.sampling import IGNORED, REFUSED
from tools.book.macs import macs_table
from tools.book.page import markdown_table, read_pages, with_generated
from tools.book.results import asked_table, read_results, results_page
from tools.commands import EVERY

ANSWERING: Final[Mapping[str, type[BaseModel]]] = {
    "chat/completions": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}


def fields_table() -> str:
    """A row for each field: the routes that take it, and what it does on the others."""
    taken = {name for schema in ANSWERING.values() for name in schema.model_fields}
    rows = []
    for name in sorted({*taken, *IGNORED, *REFUSED}):
        routes = [route for route, schema in ANSWERING.items() if name in schema.model_fields]
        where = "all" if len(routes) == len(ANSWERING) else ", ".join(routes)
        others = f"ignored: {IGNORED[name]}" if name in IGNORED else f"refused: {REFUSED.get(name, '')}"
        rows.append([f"`{name}`", where, "" if where == "all" else others])
    return markdown_table(("field", "taken by", "elsewhere"), ["---"] * 3, rows)


_MOST_LINES_OPEN = 30  # a longer block is folded, so that the tasks are in sight


@dataclass(frozen=True)
class Signatures:
    """What the tasks of a course add to functions of others; the reference is read once."""

    course: Course

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        return exercises.reference_sources(self.course)

    @cached_property
    def grown(self) -> Sequence[exercises.Growth]:
        return exercises.growths(self.course)

    def is_needed(self, day: Day) -> bool:
        """Whether the chapter of a day has something to show."""
        return any(any(self._extended(task)) for task in day.tasks)

    def shown(self, day: Day) -> str:
        """Markdown: for each task a sentence, and the functions by file with what is new marked."""
        parts = []
        for task in day.tasks:
            files: dict[str, list[str]] = {}
            for file, owner, members in self._extended(task):
                if file not in files:
                    files[file] = ["\n".join(self._imports(file, task))]
                code = "\n\n".join(self._code(self.sources[file], each, task) for each in members)
                files[file].append(f"class {owner}:\n{textwrap.indent(code, '    ')}" if owner else code)
            blocks = ["\n\n".join([f"# {name}", *filter(None, code)]) for name, code in files.items()]
            if blocks:
                parts.append("\n".join([_sentence(task), "", _block(task, "\n\n".join(blocks)), ""]))
        return "\n".join(parts)

    def _extended(self, task: Task) -> Iterator[tuple[str, str, list[Function]]]:
        """The functions that a task adds something to: by file, and by class, "" without one."""
        listed = {each.symbol for each in exercises.growths_of(task)}
        for file, source in self.sources.items():
            if not listed & source.task_of.keys() and f"From task {task.id} on:" not in source.text:
                continue
            functions = [
                function
                for name, function in source.functions.items()
                if function.is_public and source.task_of.get(name) != task
                if name in listed or task.id in dict(_additions(function))
            ]
            for owner, members in itertools.groupby(functions, key=lambda each: each.name.rpartition(".")[0]):
                yield file, owner, list(members)

    def _is_there(self, task: Task) -> exercises.IsThere:
        """Whether something is there when a task is done."""
        order = [each.id for each in self.course.tasks]
        return lambda id_: order.index(id_) <= order.index(task.id)

    def _imports(self, file: str, task: Task) -> Iterator[str]:
        """The imports that the new types need, and that the file of the starter does not have."""
        source, is_there = self.sources[file], self._is_there(task)
        used: set[str] = set()
        for growth in exercises.growths_of(task):
            if growth.symbol in source.functions:
                missing = exercises.changes(growth.symbol, self.grown, is_there)
                node = source.functions[growth.symbol].node
                heads = {each.name: each.written for each in exercises.parameters(source.text, node, missing)}
                used |= set(re.findall(r"\w+", heads[growth.parameter]))
        starter = starter_source(exercises.in_starter(source.text, self.grown), source.task_ids())
        used -= {alias.name for each in _import_nodes(starter) for alias in each.names}
        # What an earlier task has brought is there.
        before = exercises.as_of(source.text, self.grown, lambda id_: is_there(id_) and id_ != task.id)
        functions = [each for each in Source(before).functions.values() if each.is_public]
        known = [
            each.written for function in functions for each in exercises.parameters(before, function.node)
        ]
        used -= set(re.findall(r"\w+", " ".join(known)))
        for each in _import_nodes(source.text):
            if names := [alias for alias in each.names if alias.name in used]:
                yield from import_lines(each, names)

    def _code(self, source: Source, function: Function, task: Task) -> str:
        missing = exercises.changes(function.name, self.grown, self._is_there(task))
        mine = {each.parameter: each for each in exercises.growths_of(task) if each.symbol == function.name}
        head = _marked(source, function, missing, mine)
        text = dict(_additions(function)).get(task.id, [])
        if not text:
            return "\n".join([*head, "    ..."])
        end = '"""' if len(text) == 1 else '\n    """'
        return "\n".join([*head, f'    """{text[0]}', *(f"    {line}" for line in text[1:])]) + end


def _sentence(task: Task) -> str:
    says = f"Task {task.id} extends functions of earlier days"
    if task.adds or task.widens:
        return f"{says}. Marked: what is new in their signatures, and what their docstrings say of it:"
    return f"{says}. Their signatures stay, but they do more:"


def _block(task: Task, code: str) -> str:
    """Code as a fenced block; a long one is folded."""
    block, lines = f"```python\n{code}\n```", code.count("\n") + 1
    if lines <= _MOST_LINES_OPEN:
        return block
    return f"<details><summary>What task {task.id} extends, {lines} lines</summary>\n\n{block}\n\n</details>"


def _import_nodes(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]


def _marked(
    source: Source,
    function: Function,
    missing: exercises.Changes,
    mine: Mapping[str, exercises.Growth],
) -> list[str]:
    """The head of a function; when the task changes it, on a line for each parameter."""
    node = function.node
    if not mine:
        return textwrap.dedent("\n".join(exercises.head_lines(source.text, node, missing))).splitlines()
    lines = [f"def {node.name}("]
    for each in exercises.parameters(source.text, node, missing):
        growth = mine.get(each.name)
        was = "" if growth is None else "  # new" if growth.before is None else f"  # was {growth.before}"
        lines.append(f"    {each.written},{was}")
    return [*lines, f"){exercises.returned(source.text, node)}:"]


def _additions(function: Function) -> Iterator[tuple[str, list[str]]]:
    return exercises.additions(ast.get_docstring(function.node) or "")


# Lines of debugged code, for somebody who has not written such code before.
_LINES_AN_HOUR = 30


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
        "days": lambda folder: days_table(course, folder),
        "hours": lambda day: hours(course, day),
        "paths": lambda _: paths_table(course),
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
        rows.append([task.id, task.title + " (bonus)" * task.bonus, names, files, str(task.lines or "")])
    return markdown_table(("Task", "About", "You write", "File", "Lines"), (*["---"] * 4, "--:"), rows)


def hours(course: Course, day: str = "") -> str:
    """How long a day takes, or the whole path, from the lines of the answers; then its bonus tasks."""
    lines, bonus = _lines(course.day(day).tasks if day else course.tasks)
    more = f" Its bonus tasks have {bonus} lines more, about {_in_hours(bonus)}." if lines and bonus else ""
    if not day:
        return f"The whole path is {lines:,} lines, about {_in_hours(lines)}.{more.replace('Its b', 'B')}"
    path = "on the whole path, given on the short one" if lines else "a bonus, and on neither path"
    path = "on both paths" if course.day(day).short else path
    return f"*About {_in_hours(lines or bonus)}: {lines or bonus} lines to write. This day is {path}.{more}*"


def paths_table(course: Course) -> str:
    """The paths through the course: days, hours, and the command that follows each."""
    whole = {task.day_id for task in course.tasks if not task.bonus}
    extra = dict.fromkeys(t.id if t.day_id in whole else t.day_id for t in course.tasks if t.bonus)
    short = [day for day in course.days if day.short]
    times = _lines([task for day in short for task in day.tasks])[0], *_lines(course.tasks)
    days = ", ".join(day.id for day in short), "all but the bonus", ", ".join(extra)
    commands = [f"`./pdmw run next{flag}`" for flag in (" --path short", "", " --path bonus")]
    told = [f"about {_in_hours(lines)}" for lines in times]
    rows = list(zip(("short", "whole", "bonus"), days, told, commands, strict=True))
    return markdown_table(("path", "days", "time", "what comes next"), ["---"] * 4, rows)


def _lines(tasks: Sequence[Task]) -> tuple[int, int]:
    """The lines of the answers to tasks: of those on the whole path, and of the bonus."""
    lines = [sum(task.lines for task in tasks if task.bonus == is_bonus) for is_bonus in (False, True)]
    return lines[0], lines[1]


def _in_hours(lines: int) -> str:
    count = max(1, round(lines / _LINES_AN_HOUR))
    return "an hour" if count == 1 else f"{count} hours"


def days_table(course: Course, folder: str = "") -> str:
    """The days, with links to chapters in `folder`: what each adds to which folders, in which languages."""
    rows = []
    for day in course.days:
        files = [name for task in day.tasks for name in (task.file, task.kernel) if name]
        folders = dict.fromkeys(f"`{name.rpartition('/')[0]}/`" for name in files)
        endings = {"C++": (".cpp", ".h"), "Metal": (".metal",)}
        languages = [name for name, ends in endings.items() if any(file.endswith(ends) for file in files)]
        title = f"[{day.title}]({folder}{day.chapter})"
        whole, bonus = (f"{lines / _LINES_AN_HOUR:.1f}" if lines else "" for lines in _lines(day.tasks))
        times = [f"**{whole}**" if day.short else whole, bonus]
        rows.append([day.id, title, ", ".join(folders), ", ".join(languages), *times])
    return markdown_table(("Day", "Title", "Folders", "Besides Python", "Hours", "Bonus"), ["---"] * 6, rows)


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
