"""`diff`: a learner's answer next to the reference's, once it passes."""

import difflib
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.text import Text

from tiny_llm_lab.course.exercises import functions_of
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.standing import Desk, IsPassed, open_desk, passes_now
from tiny_llm_lab.course.source import Source, code_lines, is_of, kernel_answer, parsed
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.talk import log, program, terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Answer:
    """A task's part of one file, or a private helper that it calls: mine and the reference's.

    "" if a side does not have it.
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
    results = [each for name in task.files for each in _functions(course, task, name)]
    if task.kernel:
        mine, theirs = (kernel_answer(text_of(root / task.kernel), task.id) or "" for root in _roots(course))
        title = f"{', '.join(task.symbols)} in {task.kernel}" if not task.file else task.kernel
        results.append(Answer(title, task.kernel, textwrap.dedent(mine), textwrap.dedent(theirs)))
    return results


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


HELP = "Show your answer to a task next to the reference's, once its tests pass."
EXAMPLES = (
    ("1.1.1", "show one task; its tests run first, unless they passed on exactly this code"),
    ("2.7", "show all tasks of a day that pass"),
    ("1.3.2 --peek", "show it before it passes; that spoils the task"),
)
_SIDES: Final = ("mine", "reference")
_PIPE_WIDTH: Final = 110  # without a terminal no line of code breaks


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", metavar="TASK|W.D", help="a task such as 1.1.1, or a day such as 2.7")
    about = "also show tasks that do not pass yet; spoils them"
    parser.add_argument("--peek", action="store_true", help=about)


def run(args: Namespace) -> int:
    desk = open_desk()
    tasks = desk.course.tasks_of(args.what)
    is_passed = passes_now(desk)
    shown, left_out = chosen(tasks, is_passed, args.peek)
    if args.peek and not all(map(is_passed, shown)):
        log("--peek: this task does not pass yet, and its answer leaves you nothing to find")
    width = terminal_width()
    console = Console(width=width or _PIPE_WIDTH, highlight=False, soft_wrap=width is None)
    for task in shown:
        show(console, desk, task)
    for line in left_out:
        console.print(line, markup=False)
    return 0


def chosen(tasks: Sequence[Task], is_passed: IsPassed, peek: bool) -> tuple[list[Task], list[str]]:
    """The tasks to show, and a line for each that is not. Raises UserError when there is none to show."""
    shown = [task for task in tasks if peek or is_passed(task)]
    if not shown:
        names = tasks[0].id if len(tasks) == 1 else "no task of this day"
        passes = "does not pass yet" if len(tasks) == 1 else "passes yet"
        raise UserError(
            f"{names} {passes}: `{program()} test --task {tasks[0].id}` says why; --peek shows the answer "
            "anyway, which spoils the task"
        )
    return shown, [f"{task.id} {task.title}: does not pass yet" for task in tasks if task not in shown]


def show(console: Console, desk: Desk, task: Task) -> None:
    """Print all parts of a task, then how long both sides are."""
    parts = answers(desk.course, task)
    console.print(f"{task.id} {task.title}", style="bold", markup=False)
    for part in parts:
        console.print(f"\n── {part.name} · {part.file} · {_sides(part)}", style="cyan", markup=False)
        console.print(Group(*diff_lines(part.mine, part.reference, console.width)))
    for line in closing_lines(desk, task, parts):
        console.print(line, markup=False)


def _has_one_of(symbols: Sequence[str], grows: Sequence[str]) -> bool:
    return any(is_of(symbol, [name]) or is_of(name, [symbol]) for symbol in symbols for name in grows)


def closing_lines(desk: Desk, task: Task, parts: Sequence[Answer]) -> Iterator[str]:
    """The lines below the code."""
    tasks = desk.course.tasks
    if task.grows and (task.symbols or task.kernel):
        owners = [each.id for each in tasks if _has_one_of(each.symbols, task.grows)]
        yield f"it also extends {', '.join(task.grows)}: {program()} diff {' or '.join(owners)}"
    if growing := [each.id for each in tasks if _has_one_of(task.symbols, each.grows)]:
        yield f"the reference shows the final form, with the additions of {', '.join(growing)}"
    mine, theirs = (sum(code_lines(getattr(p, side), Path(p.file).suffix) for p in parts) for side in _SIDES)
    yield f"\nlines of code: yours {mine}, the reference's {theirs}"


def _sides(part: Answer) -> str:
    if not part.mine or not part.reference:
        return "only in the reference (+)" if part.reference else "only in yours (-)"
    return "the same" if part.mine == part.reference else "yours (-), the reference's (+)"


def diff_lines(mine: str, reference: str, width: int) -> Iterator[Text]:
    """All lines: "-" and "+" before those that only one side has; what is too wide goes on below it."""
    styles = {"-": "red", "+": "green", " ": ""}
    for line in difflib.ndiff(mine.splitlines(), reference.splitlines()):
        if line[0] != "?":  # a line of ndiff that points at characters
            below = " " * (len(line) - len(line[1:].lstrip()) + 4)
            for part in wrapped_lines(f"{line[0]} {line[2:]}", width, below):
                yield Text(part, styles[line[0]])
