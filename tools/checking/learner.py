"""A learner who does what the course says, or jumps about in it. What it writes is the reference's code."""

import ast
import contextlib
import functools
import inspect
import io
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from tiny_llm_lab.course.exercises import Growth, called_by, exercises, growths, parameters
from tiny_llm_lab.course.grading.sandbox import Trial
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import KERNEL_SUFFIXES, Source, is_of, kernel_answer, with_kernel_answer
from tiny_llm_lab.course.starter.backups import write_texts
from tiny_llm_lab.course.starter.filling import fill_before
from tiny_llm_lab.course.starter.merging import Module, with_answers
from tiny_llm_lab.course.starter.reset import reset_task
from tiny_llm_lab.course.starter.stubs import starter
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.task_names import is_private, modules

P = ParamSpec("P")
R = TypeVar("R")


class SimulatedLearner:
    """Works in an empty `folder`, which gets the starter.

    A function that it has written ignores the parameters of tasks that it has not reached. With a `prefix`,
    it calls helpers and the attributes of its own classes by names of its own.
    """

    def __init__(self, course: Course, folder: Path, prefix: str = "") -> None:
        self._root, self._prefix = course.root, prefix
        self.course = replace(course, root=folder)
        self._package = self.course.starter
        self._package.parent.mkdir(parents=True)
        self.course.reference.symlink_to(course.reference)
        self.sources, self._grown = exercises(course), growths(course)
        self._starter = starter(course)
        self._written: set[tuple[str, str]] = set()  # files and functions
        self._done: set[str] = set()
        self.left: set[str] = set()  # tasks that `stubs --fill-before` has said to be left to write
        self._store(self._starter)

    def fill_before(self, day: str) -> None:
        """`stubs --fill-before`."""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            fill_before(self.course, day, self._starter)
        for listed in re.findall(r"\(([\d., ]+)\) left to write", said.getvalue()):
            self.left.update(listed.split(", "))
        self._written = {
            (name, each)
            for name, each in self._written
            if not Module(self._file(name)).is_same(Module(self.sources[name]), each)
        }

    def reset(self, task: Task) -> None:
        """`reset`, if the task has something of its own."""
        if task.symbols or task.also or task.kernel:
            with contextlib.redirect_stdout(io.StringIO()):
                reset_task(self.course, task)

    def write(self, task: Task, without: Collection[str] = ()) -> None:
        """Write the functions of a task that are stubs, but for some, and extend own ones that it grows."""
        self._done.add(task.id)
        for name, source in self.sources.items():
            called, mine = called_by([task], source), self._file(name).functions
            own = [each for each, owner in source.task_of.items() if owner.id == task.id or each in called]
            new = [each for each in own if each in mine and mine[each].is_stub and each not in without]
            grown = [each for file, each in self._written if file == name and is_of(each, task.grows)]
            self._written |= {(name, each) for each in new}
            if new or grown:
                form = self._styled(name, own_form(source.text, self._grown, self._done))
                self._store({name: with_answers(self._file(name), form, [*new, *grown]).text})
        if task.kernel:
            text = text_of(self._package / task.kernel)
            if kernel_answer(text, task.id) == kernel_answer(self._starter[task.kernel], task.id):
                answer = text_of(self.course.reference / task.kernel)
                self._store({task.kernel: with_kernel_answer(text, answer, task.id)})

    def _styled(self, name: str, text: str) -> Source:
        """A file with own names for helpers, and for attributes of classes whose `__init__` is own."""
        form = Module(Source(text))
        listed = form.source.definitions.values()
        helpers = {each for item in listed if item.is_private and not item.is_field for each in item.names}
        mine = self._file(name).functions
        given = [each for each in mine if (name, each) not in self._written and not mine[each].is_stub]
        made = {each.rpartition(".")[0] for each in form.source.functions if each.endswith("__init__")}
        owners = {
            owner
            for each in given
            for owner, _, method in [each.rpartition(".")]
            if owner and (method == "__init__" or owner not in made)
        }
        kept = set[str]().union(*map(form.state, owners))
        attributes = {each for each in form.state("") if is_private(each)} - kept
        for each in helpers | attributes if self._prefix else ():
            text = re.sub(rf"\b{each}\b", f"{self._prefix}{each}", text)
        return Source(text)

    def _file(self, name: str) -> Source:
        return Source((self._package / name).read_text(encoding="utf-8"))

    def trial(self, tasks: Sequence[Task], *pytest_args: str) -> Trial:
        """The tests of some tasks on what there is now."""
        files = {name: path.read_text(encoding="utf-8") for name, path in modules(self._package).items()}
        kernels = (p for p in (self._package / "kernels").iterdir() if p.suffix in KERNEL_SUFFIXES)
        files |= {f"kernels/{path.name}": path.read_text(encoding="utf-8") for path in kernels}
        args = (*replace(self.course, root=self._root).test_files(tasks), "--solution", "mine", *pytest_args)
        return Trial(self._root, self._root / "src/tiny_llm_ref", self._package.name, files, args)

    def _store(self, texts: dict[str, str]) -> None:
        write_texts(self._package, texts)


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
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]
