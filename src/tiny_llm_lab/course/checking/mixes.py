"""Beginning at a later day: random mixes of own and given days, after which a day's tests must pass."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.checking.sandbox import Result, Trial, run_trials
from tiny_llm_lab.course.checking.simulated import SimulatedLearner
from tiny_llm_lab.course.manifest import Course, Day
from tiny_llm_lab.runtime.console.talk import log

_LIMIT_S = 600.0
_AT_ONCE = 4  # mixes that are made before their tests run


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
        part = [
            (mix, trial)
            for mix in mixes[first : first + _AT_ONCE]
            for trial in _trials(course, mix, {mix.own[-1], draw.choice(mix.own)})
        ]
        for (mix, _), result in zip(part, run_trials([trial for _, trial in part], _LIMIT_S), strict=True):
            yield from (f"{mix}: {fault}" for fault in _faults(result))
        log(f"{min(first + _AT_ONCE, number)} of {number} mixes")


def _trials(course: Course, mix: Mix, tested: set[Day]) -> list[Trial]:
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        learner, last = SimulatedLearner(course, Path(folder) / "learner"), -1
        for day in mix.own:
            if course.days.index(day) > last + 1:
                learner.fill_before(day.id)
            last = course.days.index(day)
            for task in day.tasks:
                learner.write(task)
        return [learner.trial(day.tasks, "--day", day.id) for day in sorted(tested, key=course.days.index)]


def _faults(result: Result | TimeoutError) -> list[str]:
    if isinstance(result, TimeoutError):
        return [f"its tests take more than {_LIMIT_S:.0f} s"]
    if result.error is not None:
        return [result.error]
    wrong = [test for test in result.tests if test.outcome in ("failed", "todo")]
    return [f"{test.test}: {test.headline}" for test in wrong] or ([] if result.tests else ["no test ran"])
