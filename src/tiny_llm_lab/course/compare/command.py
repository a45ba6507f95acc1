"""`compare W.D`: run a day's tests on both packages, and name the first place that differs."""

import contextlib
import io
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tiny_llm_lab.course.compare.calls import Call, Recorder
from tiny_llm_lab.course.compare.values import Difference, Value, difference, distance
from tiny_llm_lab.course.grading.sandbox import QUIETLY
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.course.record.recorder import Recorder as GradingRecord
from tiny_llm_lab.course.source import is_of
from tiny_llm_lab.runtime.console.talk import plural, say
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

# By less than this a call does not make a difference larger on its own: another one before it is to blame.
_GROWTH: Final = 10.0
# The share of what is allowed that another order of additions does not use up.
_NO_ROUNDING: Final = 0.25


@dataclass(frozen=True)
class Found:
    """The innermost call that was given the same and gave something else, below the calls around it."""

    path: tuple[Call, ...]  # of the reference, from outside to inside
    mine: Call
    says: Difference
    hint: str = ""  # what its own code did before one of its calls


def first_difference(
    wanted: Sequence[Call], got: Sequence[Call], later: Collection[str] = ()
) -> Found | None:
    """The first call, in the reference's order, with the same input and another output; None without one.

    Calls are matched by name and count: helpers that only one side has are passed over. `later` names the
    functions and classes that later days extend: the reference's do more, so they are named only when they
    hold no other call that differs, and when nothing after them differs either.
    """
    put_off = None
    for one, other in _pairs(wanted, got):
        if not is_unwritten(other) and _same_input(one, other) and (says := _output_difference(one, other)):
            if _hands_on(one, other):
                continue
            inner = first_difference(one.calls, other.calls, later)
            if inner is not None:
                result = Found((one, *inner.path), inner.mine, inner.says, inner.hint)
            else:
                result = Found((one,), other, says, _hint(one, other))
            if not is_of(result.path[-1].name, later):
                return result
            put_off = put_off or result
    return put_off


def outer_difference(wanted: Sequence[Call], got: Sequence[Call]) -> Found | None:
    """The first difference in what a test itself asked for, for tests that pass on both packages.

    Below that two right answers may go different ways: attributes and helpers of their own are no errors.
    """
    for one, other in _pairs(wanted, got):
        if not is_unwritten(other) and _same_input(one, other) and (says := _result_difference(one, other)):
            return Found((one,), other, says)
    return None


def num_calls(calls: Sequence[Call]) -> int:
    """How many calls there are, those inside others included."""
    return sum(1 + num_calls(call.calls) for call in calls)


def _pairs(wanted: Sequence[Call], got: Sequence[Call]) -> Iterator[tuple[Call, Call]]:
    numbered = {(call.name, number): call for call, number in _numbered(got)}
    for call, number in _numbered(wanted):
        if (call.name, number) in numbered:
            yield call, numbered[call.name, number]


def _numbered(calls: Sequence[Call]) -> Iterator[tuple[Call, int]]:
    seen: Counter[str] = Counter()
    for call in calls:
        seen[call.name] += 1
        yield call, seen[call.name]


def is_unwritten(call: Call) -> bool:
    """Whether a stub ended the call."""
    return call.error is not None and call.error.startswith("NotImplementedError: task ")


def _same_input(wanted: Call, got: Call) -> bool:
    return _input_difference(wanted, got) is None


def _hands_on(wanted: Call, got: Call) -> bool:
    """Whether a difference was in the input already, too small to count, and only grew a little."""
    return 1 < distance(wanted.result, got.result) < _GROWTH * _came_in(wanted, got)


def _came_in(wanted: Call, got: Call) -> float:
    common = [name for name in wanted.given if name in got.given]
    return max((distance(wanted.given[name], got.given[name]) for name in common), default=0.0)


def _input_difference(wanted: Call, got: Call) -> Difference | None:
    # A default that one side names and the other leaves out is the same call.
    return _in_common(wanted.given, got.given)


def _output_difference(wanted: Call, got: Call) -> Difference | None:
    if result := _result_difference(wanted, got):
        return result
    if wanted.error != got.error:
        return None
    result = _in_common(wanted.state, got.state)
    return Difference(f"self.{result.where}", f"{result.says} after the call") if result else None


def _result_difference(wanted: Call, got: Call) -> Difference | None:
    if wanted.error != got.error:
        says = f"the reference {_ending(wanted)}, yours {_ending(got)}"
        is_other = (wanted.error or "").partition(":")[0] != (got.error or "").partition(":")[0]
        return Difference("", says) if is_other else None
    return difference(wanted.result, got.result)


def _in_common(wanted: Mapping[str, Value], got: Mapping[str, Value]) -> Difference | None:
    names = [name for name in wanted if name in got]
    return difference({name: wanted[name] for name in names}, {name: got[name] for name in names})


def _ending(call: Call) -> str:
    return f"raises {call.error}" if call.error else "returns"


def _hint(wanted: Call, got: Call) -> str:
    """What else differs: how its object was made, or what its own code did between its calls."""
    if result := _in_common(wanted.made, got.made):
        return f"its object was made with another {result.where}: {result.says}"
    pairs = list(_pairs(wanted.calls, got.calls))
    for one, other in pairs:
        if result := _in_common(one.made, other.made):
            return f"{_named(one)} in it was made with another {result.where}: {result.says}"
    for one, other in pairs:
        if result := _input_difference(one, other):
            return f"it calls {one.name} with another {result.where}: {result.says}"
    theirs, mine = Counter(c.name for c in wanted.calls), Counter(c.name for c in got.calls)
    for name, count in theirs.items():
        if mine[name] != count:
            return f"the reference calls {name} {_times(count)} in it, yours {_times(mine[name])}"
    for one, other in pairs:
        if _came_in(one, other) == 0 and distance(one.result, other.result) > _NO_ROUNDING:
            return f"it begins in {_named(one)}, which gets the same input and returns slightly other numbers"
    return ""


def _named(call: Call) -> str:
    return f"{call.name} ({call.place[1:]})" if call.place else call.name


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


@dataclass(frozen=True)
class CallsOfTest:
    """The calls of one test, and whether the test failed on this package."""

    calls: list[Call]
    has_failed: bool = False


@dataclass(eq=False)  # pytest wants plugins to be hashable
class _Watcher:
    """A pytest plugin that keeps the calls of each test, and how it ended."""

    recorder: Recorder
    only: Collection[str] | None = None
    tests: dict[str, CallsOfTest] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        for plugin in config.pluginmanager.get_plugins():
            if isinstance(plugin, GradingRecord):  # this run does not grade
                config.pluginmanager.unregister(plugin)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid in self.only]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.recorder.take()
        result = yield
        self.tests[item.nodeid] = CallsOfTest(self.recorder.take(), item.nodeid in self.failed)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def recorded_calls(
    solution: str, pytest_args: Sequence[str], only: Collection[str] | None = None
) -> dict[str, CallsOfTest]:
    """By test, what the package of `solution` is asked and answers; with `only`, of these tests alone.

    Raises UserError when no test runs.
    """
    recorder = Recorder(PACKAGES[solution])
    watcher = _Watcher(recorder, only)
    args = [*QUIETLY, "-q", "--tb=no", "-m", "not long", "--solution", solution, *pytest_args]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), recorder.recording():
        code = pytest.main(args, plugins=[watcher])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise UserError(
            "no test has this in its name: leave out -k, or list the names with `test --collect-only -q`"
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        last = [line for line in output.getvalue().splitlines() if line.strip()][-1:]
        raise UserError(f"the tests do not run on {PACKAGES[solution]}: {''.join(last)}")
    return watcher.tests


HELP = "Run your code and the reference on the same input, and name the first call that differs."
EXAMPLES = (
    ("1.5", "compare on the inputs of day 1.5's tests"),
    ("1.3.2 -k causal", "compare on one task's tests with `causal` in their name"),
)
# Failing tests of mine are where to look; the rest of a day would take much longer.
_ENOUGH: Final = 20
_COLUMN: Final = " " * 17  # below the words behind "another result:"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", metavar="W.D", help="day W.D or task W.D.N to compare")
    parser.add_argument("-k", dest="keyword", metavar="WORD", help="only tests with this in their name")


def run(args: Namespace) -> int:
    course = load_course()
    files = [str(course.root / file) for file in course.test_files(course.tasks_of(args.what))]
    which = ["--task" if args.what.count(".") == 2 else "--day", args.what]
    keyword = ["-k", args.keyword] if args.keyword else []
    arguments = [f"--rootdir={course.root}", *files, *which, *keyword]
    mine = recorded_calls("mine", [*arguments, f"--maxfail={_ENOUGH}"])
    reference = recorded_calls("ref", arguments, only=mine)
    differing = differences(reference, mine, extended_after(course, args.what))
    for line in report(reference, mine, differing, course.root):
        say(line, _COLUMN)
    return 1 if differing else 0


def extended_after(course: Course, what: str) -> set[str]:
    """The symbols that days after a day or task extend: there the reference does more than is asked."""
    day = ".".join(what.split(".")[:2])
    return {symbol for task in course.tasks if course.is_later(task.day_id, day) for symbol in task.grows}


def differences(
    reference: Mapping[str, CallsOfTest], mine: Mapping[str, CallsOfTest], later: Collection[str]
) -> list[tuple[str, Found]]:
    """What differs, by test: in those that fail on mine, where every call is looked at, or else in others."""
    results = []
    failed = [test for test in reference if mine[test].has_failed]
    for test in failed or reference:
        one, other, has_failed = reference[test].calls, mine[test].calls, mine[test].has_failed
        each = first_difference(one, other, later) if has_failed else outer_difference(one, other)
        results += [(test, each)] if each else []
    return results


def report(
    reference: Mapping[str, CallsOfTest],
    mine: Mapping[str, CallsOfTest],
    differing: Sequence[tuple[str, Found]],
    root: Path,
) -> Iterator[str]:
    """The lines about two recordings, both by test, and their differences."""
    written = [test for test in reference if not any(map(is_unwritten, mine[test].calls))]
    todo = (
        f", {len(reference) - len(written)} of them not written yet" if len(written) < len(reference) else ""
    )
    yield f"{plural(len(reference), 'test')} on both packages{todo}"
    if not differing:
        calls = sum(num_calls(reference[test].calls) for test in written)
        yield f"no difference in {calls:,} calls" if written else "nothing to compare yet"
        if failed := [test for test in written if mine[test].has_failed]:
            yield f"{plural(len(failed), 'test')} failed all the same, and says why: {failed[0]}"
        return
    test, result = differing[0]
    yield f"{len(differing)} differ{'s' * (len(differing) == 1)}; the first: {test}"
    yield ""
    for depth, call in enumerate(result.path):
        yield f"{'  ' * depth}{call.name}{f'  ({call.place[1:]})' if call.place else ''}"
    yield f"{'  ' * len(result.path)}at {result.mine.code.removeprefix(f'{root}/')}"
    yield ""
    given = [f"{name} {_brief(value)}" for name, value in result.path[-1].given.items()]
    yield f"the same input:  {', '.join(given) or 'none'}"
    where = f"{result.says.where}: " if result.says.where else ""
    yield f"another result:  {where}{result.says.says}"
    if result.hint:
        yield f"because:         {result.hint}"
    if not mine[test].has_failed:
        yield ""
        yield "this test passes on yours, so it may allow the difference"


def _brief(value: Value) -> str:
    if isinstance(value, tuple | dict):
        return f"({len(value)} values)"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
