"""Two schedules side by side: where a failing comparison of whole runs first departs."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

# A plan's tokens by request id.
Step = Mapping[str, int]
_ROWS_BEFORE, _ROWS_AFTER = 3, 4  # around the first step that differs: a failure fits on a screen


def assert_steps(got: Sequence[Step], want: Sequence[Step], why: str = "") -> None:
    """Fail unless both are the same steps; shown are those around the first that differs."""
    __tracebackhide__ = True
    pairs = list(zip_longest(want, got))
    first = next((i for i, (expected, yours) in enumerate(pairs) if expected != yours), None)
    if first is None:
        return
    rows = [("step", "expected", "yours")]
    start = max(0, first - _ROWS_BEFORE)
    for i, pair in enumerate(pairs[start : first + _ROWS_AFTER], start):
        rows.append((f"{'>' if i == first else ' '} {i}", *map(_shown, pair)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{step:<{widths[0]}}  {left:<{widths[1]}} | {right}" for step, left, right in rows]
    title = f"the schedule differs from step {first} on ({len(want)} steps expected, {len(got)} made)"
    raise AssertionError("\n".join([f"{title}: {why}" if why else title, *lines]))


def _shown(step: Step | None) -> str:
    """Sorted: the order of a step's requests is compared elsewhere."""
    return "(no step)" if step is None else ", ".join(f"{name}: {step[name]}" for name in sorted(step)) or "-"
