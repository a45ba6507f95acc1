"""The code that answers a task, in a learner's package and in the reference."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.cutting import kernel_answer
from tiny_llm_lab.course.exercises import functions_of
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Source, parsed
from tiny_llm_lab.runtime.checkout import text_of


@dataclass(frozen=True)
class Answer:
    """A task's part of one file, or a private helper that it calls: mine beside the reference's.

    "" stands for what a side does not have.
    """

    name: str
    file: str
    mine: str
    reference: str


def answers(course: Course, task: Task) -> list[Answer]:
    """All parts of a task, the private helpers behind the functions that call them.

    A task without functions and kernel of its own has those that it extends. Raises UserError for a file of
    the learner's that is not Python.
    """
    found = [each for name in task.files for each in _functions(course, task, name)]
    if task.kernel:
        mine, theirs = (kernel_answer(text_of(root / task.kernel), task.id) or "" for root in _roots(course))
        title = f"{', '.join(task.symbols)} in {task.kernel}" if not task.file else task.kernel
        found.append(Answer(title, task.kernel, textwrap.dedent(mine), textwrap.dedent(theirs)))
    return found


def _functions(course: Course, task: Task, file: str) -> list[Answer]:
    mine, theirs = (parsed(file, text_of(root / file)) for root in _roots(course))
    if task.kernel and not task.symbols_in(file):
        return []
    listed = [each.name for each in functions_of(course, task, file, theirs.functions.values())]
    shown = [each for name in listed for each in [name, *theirs.helpers(name), *mine.helpers(name)]]
    return [Answer(name, file, _code(mine, name), _code(theirs, name)) for name in dict.fromkeys(shown)]


def _code(source: Source, name: str) -> str:
    return textwrap.dedent("\n".join(source.code(name))) + "\n" if name in source.definitions else ""


def _roots(course: Course) -> tuple[Path, Path]:
    return course.starter, course.reference
