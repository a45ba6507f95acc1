"""Whether the course can be done as it is written: day by day, and after any mix of own and given days."""

import ast
import contextlib
import functools
import inspect
import io
import random
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from tiny_llm_lab.course.exercises import Growth, called_by, exercises, growths, parameters, reference_sources
from tiny_llm_lab.course.grading.sandbox import Result, Trial, run_trials, settled
from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.course.source import KERNEL_SUFFIXES, Source, cut_kernels, is_of, without_unused
from tiny_llm_lab.course.starter.stubs import fill_before, starter
from tiny_llm_lab.runtime.console.talk import log, plural
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


_LIMIT_S = 600.0
_DO = re.compile(r"<div class=\"do\">\n(?P<says>.*?)</div>", re.DOTALL)
_TEST = re.compile(r"test --task (\S+)\n((?:(?!test --task).)*)", re.DOTALL)
_EXPECT = re.compile(r"Expect `(?P<passed>\d+) passed(?:, (?P<todo>\d+) todo)?`")
_CODE = re.compile(r"`([^`\n]+)`")


def chapter_faults(course: Course, day: str | None = None, is_quick: bool = False) -> Iterator[str]:
    """What a learner who does what a page says finds otherwise, of all days or one.

    With `is_quick` only the tests of each day's first task are run.
    """
    days, sources = course.days if day is None else (course.day(day),), reference_sources(course)
    tried = {task for each in days for task in each.tasks[: 1 if is_quick else None]}
    results = run_trials(_trials(course, tried), _LIMIT_S)
    for i, each in enumerate(days, 1):
        pages = _instructions(course, each)
        for task in each.tasks:
            block, expected = pages.get(task.id, ("", ""))
            yield from (f"{task.id}: the page asks for no {name}" for name in _unnamed(task, block, sources))
            if task in tried:
                yield from _wrong_count(task, expected, settled(next(results), _LIMIT_S))
        log(f"{i} of {plural(len(days), 'day')}")


def _trials(course: Course, tried: Collection[Task]) -> Iterator[Trial]:
    """The tests of each task of `tried`, once it and all tasks before it are written."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        learner = SimulatedLearner(course, Path(folder) / "learner")
        for task in course.tasks:
            learner.write(task)
            if task in tried:
                yield learner.trial([task], "--task", task.id)


def _instructions(course: Course, day: Day) -> dict[str, tuple[str, str]]:
    """By each task what the pages of its day tell a learner to do, and what to expect."""
    texts = (course.root / "book/src" / page for page in day.pages)
    blocks = [block for path in texts for block in _DO.findall(path.read_text(encoding="utf-8"))]
    return {task: (block, expected) for block in blocks for task, expected in _TEST.findall(block)}


def _unnamed(task: Task, page: str, sources: Mapping[str, Source]) -> Iterator[str]:
    """The public methods of a task that its page leaves out of a list of its class's methods."""
    named = set(_CODE.findall(page))
    owned = [each for file in task.files for each, owner in sources[file].task_of.items() if owner == task]
    said = [name for name in owned if name in named or name.rpartition(".")[2] in named]
    for name in owned:
        owner, _, method = name.rpartition(".")
        is_listed = owner and sum(each.rpartition(".")[0] == owner for each in said) > 1
        if is_listed and name not in said and method != "__init__":
            yield name


def _wrong_count(task: Task, page: str, result: Result) -> Iterator[str]:
    if result.error is not None:
        yield f"{task.id}: {result.error}"
        return
    outcomes = ("passed", "todo", "failed", "skipped")
    counts = {outcome: len(result.having(outcome)) for outcome in outcomes}
    expected = _EXPECT.search(page)
    said = {key: int(num or 0) for key, num in expected.groupdict().items()} if expected else {}
    if said != {key: counts[key] for key in ("passed", "todo")} or counts["failed"]:
        yield f"{task.id}: page says {_listed(said) or 'no number'}, got {_listed(counts) or 'no test'}"
        yield from (f"{task.id}: {fault}" for fault in result.faults()[:3])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{num} {outcome}" for outcome, num in counts.items() if num)


_AT_ONCE = 10  # mixes, after which we say how far we are


@dataclass(frozen=True)
class Mix:
    """The days that a learner writes, in order; all others before the last of them are given."""

    own: tuple[Day, ...]

    def __str__(self) -> str:
        return f"own {', '.join(day.id for day in self.own)}"


def draw_mixes(days: Sequence[Day], number: int, seed: int) -> list[Mix]:
    """Random mixes, the same for the same seed. Every day is the last one equally often, if it can be."""
    draw = random.Random(seed)
    lasts = [each for _ in range(-(-number // len(days))) for each in draw.sample(days, len(days))]
    mixes = []
    for last in lasts[:number]:
        before, share = days[: days.index(last)], draw.random()
        mixes.append(Mix((*(day for day in before if draw.random() < share), last)))
    return mixes


def mix_faults(course: Course, number: int, seed: int = 0) -> Iterator[str]:
    """Tests that fail or are TODO on the last day of a mix, and on one more own day."""
    mixes, draw = draw_mixes(course.days, number, seed), random.Random(seed)
    for first in range(0, number, _AT_ONCE):
        tested = [
            (mix, day)
            for mix in mixes[first : first + _AT_ONCE]
            for day in sorted({mix.own[-1], draw.choice(mix.own)}, key=course.days.index)
        ]
        # A generator: the tests of one mix run while the next is made.
        results = run_trials((_trial(course, mix, day) for mix, day in tested), _LIMIT_S)
        for (mix, _), result in zip(tested, results, strict=True):
            found = settled(result, _LIMIT_S)
            faults = found.faults() or ([] if found.tests else ["no test ran"])
            yield from (f"{mix}: {fault}" for fault in faults)
        log(f"{min(first + _AT_ONCE, number)} of {number} mixes")


def _trial(course: Course, mix: Mix, tested: Day) -> Trial:
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        learner, last = SimulatedLearner(course, Path(folder) / "learner"), -1
        for day in mix.own:
            if course.days.index(day) > last + 1:
                learner.fill_before(day.id)
            last = course.days.index(day)
            for task in day.tasks:
                learner.write(task)
        return learner.trial(tested.tasks, "--day", tested.id)
