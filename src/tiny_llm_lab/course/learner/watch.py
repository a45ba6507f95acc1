"""`watch`: grade a day again whenever a file of src/tiny_llm is saved, until it passes."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path

from tiny_llm_lab.course.grading.run_tests import environment, graded_command
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.record.desk import Desk, named_task, open_desk
from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED, log
from tiny_llm_lab.types import UserError

HELP = "Grade a day again whenever you save a file in src/tiny_llm; end when it passes."
EXAMPLES = (
    ("", "grade the day of the task that `next` names"),
    ("2.7", "grade day 2.7"),
    ("2.7.1", "grade one task of it"),
)
# How often we check whether to stop; we notice a save at once.
_LOOK_MS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a day or task, such as 2.7 or 2.7.1 (default: the day of the next task)"
    parser.add_argument("day", nargs="?", metavar="W.D", help=what)
    parser.add_argument("--day", dest="day_flag", metavar="W.D", help="the same, as for `test`")
    parser.add_argument("--task", metavar="T", help="only this task, such as --task 2.7.3")


def run(args: argparse.Namespace) -> int:
    desk = open_desk()
    course = desk.course
    day, task = _chosen(desk, args)
    command = graded_command(
        course,
        argparse.Namespace(
            command="test", week=None, day=day, task=task, kernels=None, full=False, handed_on=[]
        ),
    )

    def grade() -> int:
        code = subprocess.run(command, cwd=course.root, env=environment()).returncode
        log(f"save in {course.starter.relative_to(course.root)} to grade again; Ctrl-C ends" if code else "")
        return code

    return watch_until_green(saves(course), grade, _clear)


def watch_until_green(changes: Iterable[Sized], grade: Callable[[], int], clear: Callable[[], None]) -> int:
    """Call `grade` now and after each change that is not empty, until it returns 0; the exit code.

    `changes` is asked once before the first grading, so that it hears what is saved while that runs.
    """
    source = iter(changes)
    next(source, None)
    while True:
        clear()
        code = grade()
        if code in (0, EXIT_INTERRUPTED):
            return code
        if not any(len(change) for change in source):
            return code


def saves(course: Course) -> Iterator[Sized]:
    """The files of src/tiny_llm that were saved, in sets; an empty set when there was none for a while."""
    from watchfiles import watch  # here: no other command needs it

    return watch(course.starter, watch_filter=_is_source, rust_timeout=_LOOK_MS, yield_on_timeout=True)


def _is_source(change: object, path: str) -> bool:
    # Editors write other files next to it, and Python writes caches.
    return Path(path).suffix in (".py", ".cpp", ".h", ".metal")


def _chosen(desk: Desk, args: argparse.Namespace) -> tuple[str | None, str | None]:
    days = [day for day in (args.day, args.day_flag) if day is not None]
    named = args.task or next((each for each in days if each.count(".") == 2), None)
    if named is not None:
        task = named_task(desk.course, named)
        if others := [day for day in days if day not in (task.day_id, task.id)]:
            raise UserError(f"task {task.id} is not in day {others[0]}: leave out one of them")
        return None, task.id
    if len(set(days)) > 1:
        raise UserError(f"watch grades one day, not both {' and '.join(days)}: name one")
    if days:
        return desk.course.day(days[0]).id, None
    return desk.task_or_next(None, "watch 2.7").day_id, None


def _clear() -> None:
    if sys.stdout.isatty():
        print("\033[2J\033[3J\033[H", end="", flush=True)
