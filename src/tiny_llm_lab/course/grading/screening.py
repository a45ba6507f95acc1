"""Tests tried on many versions of a package in one process: the code of functions is exchanged in place."""

import importlib
import inspect
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tiny_llm_lab.course.grading.sandbox import LIMIT_S, Trial, error_message, rounded, run_trials
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.source import is_of

# Seconds for one version and one test, of processor time, where one loops, and in all, where one waits.
TEST_S, _WAITS_S = 2.0, 60


@dataclass(frozen=True)
class Variant:
    """A file of the reference in which functions of `symbol` differ; `says` what that does.

    Without a symbol something else differs, such as C++, and it needs a process of its own.
    """

    says: str
    file: str
    symbol: str
    text: str


@dataclass(frozen=True)
class Fit:
    """Which failing tests say the same with a variant, by their numbers.

    `how_many` is "all" if the others pass, "some", "more" if one of the others fails, or "unknown" if there
    was no time for all tests.
    """

    says: str
    how_many: str
    alike: frozenset[int]


def screened(
    course: Course, variants: Sequence[Variant], wanted: Mapping[str, str], limit_s: float, counts: bool
) -> list[Fit]:
    """How well those variants fit that were tried within `limit_s` of processor time.

    `wanted` has what each test should say, "" to pass, first those that fail. With `counts` all that fail
    are tried; otherwise a variant is given up at the first test that differs. One that ends the process is
    given up.
    """
    left, fits, package = dict(enumerate(variants)), dict[int, Fit](), course.reference.name
    while left and limit_s > 0:
        in_place = {number: each for number, each in left.items() if each.symbol}
        group = in_place or dict([*left.items()][:1])
        changed = {} if in_place else {each.file: each.text for each in group.values()}
        with tempfile.NamedTemporaryFile("r", prefix="tiny-llm-") as journal:
            plugin = _Screening(package, group, wanted, limit_s, counts, Path(journal.name))
            args = ("-p", "no:faulthandler", "--solution", "ref", "--full", *wanted)
            trial = Trial(course.root, course.reference, package, changed, args, (plugin,))
            list(run_trials([trial], limit_s + LIMIT_S))
            rows = [line.split() for line in journal]
        for number, *row in rows:
            says = left.pop(int(number)).says
            fits |= {int(number): Fit(says, row[0], frozenset(map(int, row[2:])))} if row else {}
        limit_s -= max([1.0, *(float(row[2]) for row in rows if len(row) > 2)]) if rows else limit_s
    return [fits[number] for number in sorted(fits)]


@dataclass(eq=False)  # pytest wants plugins to be hashable
class _Screening:
    """A pytest plugin that runs the tests on each variant, as long as it is in question.

    A line of `journal` has the number of a variant, how many tests fit, the processor time up to then, and
    the tests that are alike. A variant that ends the process has a line with its number alone.
    """

    package: str
    variants: Mapping[int, Variant]
    wanted: Mapping[str, str]
    limit_s: float
    counts: bool
    journal: Path
    failed: list[pytest.TestReport] = field(default_factory=list)

    def pytest_sessionstart(self) -> None:
        for each in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(each, lambda *_: pytest.fail("the time limit"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += [report] if report.failed else []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with self.journal.open("w", encoding="utf-8") as journal:
            for number, variant in self.variants.items():
                if _spent_s() < self.limit_s:
                    print(number, end=" ", file=journal, flush=True)
                    exchange = _exchanged(self.package, variant) if variant.symbol else nullcontext(True)
                    with exchange as is_code:
                        how_many, alike = self._fit(items) if is_code else ("some", [])
                        print(how_many, _spent_s(), *alike, file=journal)
        return True

    def _fit(self, items: Mapping[str, pytest.Item]) -> tuple[str, list[int]]:
        how_many, alike = "all", list[int]()
        for number, (test, wanted) in enumerate(self.wanted.items()):
            if _spent_s() >= self.limit_s:
                return "unknown", alike
            if self._message(items[test]) == wanted:
                alike += [number] if wanted else []
            elif not wanted:
                return "more", alike
            else:
                how_many = "some"
            if how_many == "some" and not (self.counts and (wanted or alike)):
                break
        return how_many, alike

    def _message(self, item: pytest.Item) -> str:
        """What a test says, "" if it passes."""
        self.failed.clear()
        try:
            signal.setitimer(signal.ITIMER_PROF, TEST_S)
            signal.alarm(_WAITS_S)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
        return rounded(error_message(self.failed[0])) if self.failed else ""


@contextmanager
def _exchanged(package: str, variant: Variant) -> Iterator[bool]:
    """The reference with a variant's functions of its symbol; False where they can't take their place."""
    module = f"{package}.{variant.file.removesuffix('.py').replace('/', '.')}"
    functions, codes = _functions(vars(importlib.import_module(module))), _codes(module, variant.text)
    names = [name for name in functions.keys() & codes.keys() if is_of(name, [variant.symbol])]
    before, is_code = {name: functions[name].__code__ for name in names}, bool(names)
    try:
        for name in names:
            functions[name].__code__ = codes[name]
    except ValueError:  # another number of names of the function around it
        is_code = False
    try:
        yield is_code
    finally:
        for name in names:
            functions[name].__code__ = before[name]


def _spent_s() -> float:
    """Processor time, with that of compilers."""
    return sum(os.times()[:4])


def _codes(module: str, text: str) -> dict[str, CodeType]:
    """The code of a source's functions and methods; none if it does not run."""
    names: dict[str, object] = {"__name__": module, "__package__": module.rpartition(".")[0]}
    try:
        exec(compile(text, "variant", "exec"), names)
    except Exception:
        return {}
    return {name: each.__code__ for name, each in _functions(names).items()}


def _functions(names: Mapping[str, object]) -> dict[str, FunctionType]:
    """The functions and methods that a module defines, by their names in it."""
    of = names["__name__"]
    classes = [each for each in names.values() if isinstance(each, type) and each.__module__ == of]
    members = [*names.values(), *(member for each in classes for member in vars(each).values())]
    found = [inspect.unwrap(getattr(each, "__func__", getattr(each, "fget", each))) for each in members]
    return {f.__qualname__: f for f in found if isinstance(f, FunctionType) and f.__module__ == of}
