"""Finds the first place where two recordings of the same work differ although they must agree."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.course.compare.calls import Call
from tiny_llm_lab.course.compare.values import Difference, Value, difference, distance
from tiny_llm_lab.course.source import is_of

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
                found = Found((one, *inner.path), inner.mine, inner.says, inner.hint)
            else:
                found = Found((one,), other, says, _hint(one, other))
            if not is_of(found.path[-1].name, later):
                return found
            put_off = put_off or found
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
    if found := _result_difference(wanted, got):
        return found
    if wanted.error != got.error:
        return None
    found = _in_common(wanted.state, got.state)
    return Difference(f"self.{found.where}", f"{found.says} after the call") if found else None


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
    if found := _in_common(wanted.made, got.made):
        return f"its object was made with another {found.where}: {found.says}"
    pairs = list(_pairs(wanted.calls, got.calls))
    for one, other in pairs:
        if found := _in_common(one.made, other.made):
            return f"{_named(one)} in it was made with another {found.where}: {found.says}"
    for one, other in pairs:
        if found := _input_difference(one, other):
            return f"it calls {one.name} with another {found.where}: {found.says}"
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
