"""A simulated learner: a starter in a folder of its own, into which answers are given or written."""

import ast
import contextlib
import functools
import inspect
import io
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from tiny_llm_lab.course.exercises import called_by, exercises
from tiny_llm_lab.course.grading.sandbox import Trial
from tiny_llm_lab.course.growth import Growth, growths, parameters
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import KERNEL_SUFFIXES, Source, cut_kernels, is_of, without_unused
from tiny_llm_lab.course.starter.stubs import fill_before, starter
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError

P = ParamSpec("P")
R = TypeVar("R")


class SimulatedLearner:
    """Works in an empty `folder`, which gets the starter. What it writes is the reference's code.

    A function that it has written ignores the parameters of tasks that it has not reached.
    """

    def __init__(self, course: Course, folder: Path) -> None:
        self._root = course.root
        self.course = replace(course, root=folder)
        self._package = self.course.starter
        self._package.parent.mkdir(parents=True)
        self.course.reference.symlink_to(course.reference)
        self._sources, self._grown = exercises(course), growths(course)
        self._written: set[tuple[str, str]] = set()  # files and functions
        self._done: set[str] = set()
        self._store(starter(course))

    def fill_before(self, day: str) -> None:
        """`stubs --fill-before`. A file that it refuses is deleted, as it proposes, and given as well."""
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                fill_before(self.course, day)
            except UserError as error:
                for name in str(error).partition(" in src/tiny_llm")[0].split(", "):
                    (self._package / name).unlink()
                    self._written = {each for each in self._written if each[0] != name}
                fill_before(self.course, day)
        self._reach(
            [t for t in self.course.tasks if self.course.is_later(day, t.day_id) and t.id not in self._done]
        )

    def write(self, task: Task) -> None:
        """Write what the task owns and was not given, and extend own functions that it grows."""
        for name, source in self._sources.items():
            called = called_by([task], source)
            wanted = [each for each, owner in source.task_of.items() if owner.id == task.id or each in called]
            self._written |= {(name, each) for each in wanted if self._file(name).functions[each].is_stub}
        self._reach([task])

    def _reach(self, tasks: Sequence[Task]) -> None:
        """Have these tasks done, but for functions that were given: those that they grow are rewritten."""
        self._done |= {task.id for task in tasks}
        kernels = cut_kernels(self.course.reference / "kernels", lambda each: each not in self._done)
        self._store({f"kernels/{name}": text for name, text in kernels.items()})
        grown = [symbol for task in tasks for symbol in task.grows]
        for name, source in self._sources.items():
            mine = self._file(name)
            own = [
                each
                for each in source.task_of
                if (name, each) in self._written and (mine.functions[each].is_stub or is_of(each, grown))
            ]
            if own:
                form = Source(own_form(source.text, self._grown, self._done))
                rest = [each for each in source.task_of if each not in own]
                self._store({name: without_unused(form.with_code_of(mine, rest))})

    def _file(self, name: str) -> Source:
        return Source((self._package / name).read_text(encoding="utf-8"))

    def trial(self, tasks: Sequence[Task], *pytest_args: str) -> Trial:
        """The tests of some tasks on what there is now."""
        files = {name: path.read_text(encoding="utf-8") for name, path in modules(self._package).items()}
        kernels = (p for p in (self._package / "kernels").iterdir() if p.suffix in KERNEL_SUFFIXES)
        files |= {f"kernels/{path.name}": path.read_text(encoding="utf-8") for path in kernels}
        tests = replace(self.course, root=self._root).test_files(tasks)
        args = (*tests, "--solution", "mine", *pytest_args)
        return Trial(self._root, self._root / "src/tiny_llm_ref", self._package.name, files, args)

    def _store(self, texts: dict[str, str]) -> None:
        for name, text in texts.items():
            path = self._package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def own_form(source: str, grown: Sequence[Growth], done: Collection[str]) -> str:
    """A file whose functions ignore parameters of tasks that are not done, and hide them from tests."""
    lines, functions = source.splitlines(), Source(source).functions
    for name, function in reversed(functions.items()):
        later = {each.parameter for each in grown if each.symbol == name and each.before is None}
        later -= {each.parameter for each in grown if each.symbol == name and each.task in done}
        gone = {each.name: each.default for each in parameters(source, function.node) if each.name in later}
        if gone:
            pad, body = " " * function.node.col_offset, function.first_body_line - 1
            lines[body:body] = [f"{pad}    {each} = {default}" for each, default in gone.items()]
            lines.insert(function.node.lineno - 1, f"{pad}@_hidden({', '.join(map(repr, gone))})")
    top = next(node.lineno for node in Source(source).tree.body if not isinstance(node, ast.Expr))
    lines.insert(top - 1, f"from {hidden.__module__} import {hidden.__name__} as _hidden")
    return "\n".join(lines) + "\n"


def hidden(*later: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of a function that has the parameters `later` for its own package alone.

    The answers of the reference pass them early, and a learner's would not. Any other caller gets a
    TypeError, as from a function without them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            frame = sys._getframe(1)
            # A test that has put itself around the function hands on what its package passes.
            packages = {_package(each) for each in (frame, frame.f_back)}
            if function.__module__.partition(".")[0] not in packages:
                passed = inspect.signature(function).bind(*args, **kwargs).arguments
                for name in (name for name in later if name in passed):
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")
            return function(*args, **kwargs)

        return called

    return decorate


def _package(frame: FrameType | None) -> str:
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name.partition(".")[0]
