"""`watch`: one task in one window, graded on every save, and a key for each kind of help."""

import argparse
import os
import select
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tiny_llm_lab.course.grading.run_tests import environment, graded_command
from tiny_llm_lab.course.grading.spare import Spare
from tiny_llm_lab.course.learner.next_task import desk_on_path
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.standing import Desk, open_desk
from tiny_llm_lab.runtime.console.talk import program, say


@contextmanager
def pressed_keys() -> Iterator[Callable[[], str] | None]:
    """A function that returns the next key or "" at once; None where stdin or stdout is no terminal.

    At the end of stdin, as when the terminal is closed, it returns "q".
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield None
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)  # Ctrl-C still interrupts
    try:
        yield lambda: _read(stdin) if select.select([stdin], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _read(stdin: int) -> str:
    return os.read(stdin, 1).decode(errors="replace") or "q"


HELP = "Grade one task again whenever you save a file in src/tiny_llm, with a key for each kind of help."
EXAMPLES = (
    ("", "watch the task that `next` names, and then those after it"),
    ("2.7", "begin with the first task of day 2.7 that has not passed"),
    ("2.7.1", "watch this task"),
)
ELSEWHERE = {flag: f"watch takes a day or a task: {program()} watch 2.7.1" for flag in ("--day", "--task")}
SAVE: Final = "save"  # the other events are keys, of one character
_LOOK_MS = 100  # how often we look for a key; we notice a save at once
_FAILED_KEYS = "h hint · e explain · c compare · q quit · save to grade again"
_PASSED_KEYS = "d diff with the reference · n next task · q quit"
# pytest stops at the first failure, and prints no more than that.
_FIRST_ONLY = ("-x", "-p", "no:closing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a task such as 2.7.1, or a day such as 2.7 (default: the next task)"
    parser.add_argument("what", nargs="?", metavar="TASK", help=what)


def run(args: argparse.Namespace) -> int:
    desk = desk_on_path() if args.what is None else open_desk()  # what is named is not given
    task = _chosen(desk, args.what)
    with pressed_keys() as pressed:
        session = Session(desk.course, task, Spare(desk.course.root), has_keys=pressed is not None)
        try:
            return follow(_events(desk.course, pressed or (lambda: "")), session)
        finally:
            session.close()


def follow(events: Iterable[str], session: "Session") -> int:
    """Grade, then handle each event until it is over; the exit code. "" is a moment without an event.

    `events` is asked once before the first grading, so that it hears what is saved while that runs.
    """
    source = iter(events)
    next(source, None)
    session.grade()
    while session.code is None:
        session.handle(next(source, "q"))
    return session.code


class Session:
    """The task that is watched: graded, helped with, and left for the next one.

    `code` is an exit code once it is over, None before.
    """

    def __init__(self, course: Course, task: Task, spare: Spare, *, has_keys: bool) -> None:
        self.code: int | None = None
        self._course, self._task, self._spare, self._has_keys = course, task, spare, has_keys
        self._graded = 0  # pytest's exit code

    def grade(self) -> None:
        if self._has_keys:
            print("\033[2J\033[3J\033[H", end="")  # a clear screen, scrolled lines too
        say(f"{self._task.id} {self._task.title}")
        self._graded = self._spare.run(_arguments(self._course, self._task))
        if self._has_keys:
            self._list_keys()
        elif self._graded:
            say("save in src/tiny_llm to grade again; Ctrl-C ends")
        else:
            self.code = 0

    def handle(self, event: str) -> None:
        """Do what a save or a key asks for."""
        commands = {"h": "hint", "e": "explain", "c": "compare"} if self._graded else {"d": "diff"}
        if event == SAVE:
            self.grade()
        elif event == "q":
            self.code = self._graded
        elif event == "n":
            self._go_on()
        elif event in commands:
            print("…", flush=True)
            command = [sys.executable, "-m", "tiny_llm_lab", commands[event], self._task.id]
            subprocess.run(command, cwd=self._course.root, env=environment())
            self._list_keys()

    def close(self) -> None:
        """End the process that waits."""
        self._spare.close()

    def _go_on(self) -> None:
        now = desk_on_path(self._course).standing
        task = now.next_after(self._task)
        if self._graded:
            say(f"{self._task.id} has not passed yet; to skip it, quit and name another: watch 2.7.1")
        elif task is None:
            say(now.end)
        else:
            self._task = task
            self.grade()

    def _list_keys(self) -> None:
        say(_FAILED_KEYS if self._graded else _PASSED_KEYS)


def _arguments(course: Course, task: Task) -> list[str]:
    """pytest's arguments, for one task."""
    asked = argparse.Namespace(command="test", week=None, day=None, task=task.id, kernels=None, full=False)
    asked.handed_on = []
    return [*graded_command(course, asked)[len(("python", "-m", "pytest")) :], *_FIRST_ONLY]


def _events(course: Course, pressed: Callable[[], str]) -> Iterator[str]:
    """Saves and keys as they come, and "" now and then."""
    from watchfiles import watch  # here: no other command needs it

    source = watch(course.starter, watch_filter=_is_source, rust_timeout=_LOOK_MS, yield_on_timeout=True)
    for saved in source:
        yield SAVE if saved else pressed()


def _is_source(change: object, path: str) -> bool:
    # Editors write other files next to it, and Python writes caches.
    return Path(path).suffix in (".py", ".cpp", ".h", ".metal")


def _chosen(desk: Desk, what: str | None) -> Task:
    """The task that is named; of a day, the first that has not passed. Raises UserError for neither."""
    if what is None:
        return desk.task_or_next(None, "watch 2.7.1")
    tasks = desk.course.tasks_of(what)
    left = [task for task in tasks if desk.standing.is_open(task)]
    return (left or tasks)[0]
