"""The code that answers a task, in a learner's package and in the reference."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.cutting import kernel_answer
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Source
from tiny_llm_lab.course.starter.definitions import Module
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Answer:
    """A task's part of one file, or a private helper that it calls: mine beside the reference's.

    `language` is "python" or "cpp"; "" stands for what a side does not have.
    """

    name: str
    file: str
    language: str
    mine: str
    reference: str


def answers(course: Course, task: Task) -> list[Answer]:
    """All parts of a task, the private helpers behind the functions that call them.

    A task without functions and kernel of its own has those that it extends. Raises UserError for a file of
    the learner's that is not Python.
    """
    found = [each for name in task.files for each in _functions(course, task, name)]
    if task.kernel:
        mine, theirs = (kernel_answer(_text(root / task.kernel), task.id) or "" for root in _roots(course))
        title = f"{', '.join(task.symbols)} in {task.kernel}" if not task.file else task.kernel
        found.append(Answer(title, task.kernel, "cpp", textwrap.dedent(mine), textwrap.dedent(theirs)))
    return found


def num_lines(code: str, language: str) -> int:
    """Lines of code, without docstrings, comments and blank lines."""
    if language == "python":
        spans = [(f.node.lineno, f.node.body[0], f.first_body_line) for f in Source(code).functions.values()]
        lines = code.splitlines()
        for _, first, end in spans:
            lines[first.lineno - 1 : end - 1] = [""] * (end - first.lineno)
        code = "\n".join(lines)
    return sum(1 for line in code.splitlines() if line.strip() and not line.lstrip().startswith(("#", "//")))


def _functions(course: Course, task: Task, file: str) -> list[Answer]:
    mine, theirs = (Module(_text(root / file)) for root in _roots(course))
    named = task.symbols_in(file) or (() if task.kernel else task.grows)
    others = [each for each in course.tasks if each is not task]
    taken = {symbol for each in others for symbol in each.symbols_in(file)} - set(named)
    try:
        Source(mine.text).tree  # noqa: B018 - an error is told here
    except SyntaxError as error:
        raise UserError(f"src/tiny_llm/{file}:{error.lineno} is not Python: {error.msg}") from None
    listed = [
        name
        for name, function in Source(theirs.text).functions.items()
        if function.is_public and name not in taken and _is_of(name, named)
    ]
    shown = [each for name in listed for each in [name, *theirs.helpers(name), *_own_helpers(mine, name)]]
    return [
        Answer(name, file, "python", _code(mine, name), _code(theirs, name)) for name in dict.fromkeys(shown)
    ]


def _own_helpers(mine: Module, name: str) -> Sequence[str]:
    return mine.helpers(name) if name in mine.definitions else ()


def _code(module: Module, name: str) -> str:
    return textwrap.dedent("\n".join(module.code(name))) + "\n" if name in module.definitions else ""


def _roots(course: Course) -> tuple[Path, Path]:
    return course.starter, course.reference


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _is_of(name: str, symbols: Sequence[str]) -> bool:
    return any(name == symbol or name.startswith(f"{symbol}.") for symbol in symbols)
