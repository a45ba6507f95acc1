"""Whether days pass after any mix of own, given and half-written days, skipped, reset and done again."""

import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.grading.sandbox import Trial, run_trials, settled
from tiny_llm_lab.course.manifest import Course, Day
from tiny_llm_lab.runtime.console.talk import log
from tools.checking.learner import SimulatedLearner

_LIMIT_S = 600.0
_AT_ONCE = 10  # mixes, after which we say how far we are


@dataclass(frozen=True)
class Mix:
    """The days that a learner writes, in order; what it leaves out of them is given, as are all others.

    `whim` is the seed of what it leaves out, of its names, and of what it does again.
    """

    own: tuple[Day, ...]
    whim: int = 0

    def __str__(self) -> str:
        return f"own {', '.join(day.id for day in self.own)} (whim {self.whim})"


def draw_mixes(days: Sequence[Day], number: int, seed: int) -> list[Mix]:
    """Random mixes, the same for the same seed. Every day is the last one equally often, if it can be."""
    draw = random.Random(seed)
    lasts = [each for _ in range(-(-number // len(days))) for each in draw.sample(days, len(days))]
    mixes = []
    for last in lasts[:number]:
        before, share = days[: days.index(last)], draw.random()
        own = (*(day for day in before if draw.random() < share), last)
        mixes.append(Mix(own, draw.randrange(1000)))
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
        left = list[set[str]]()
        results = run_trials((_trial(course, mix, day, left) for mix, day in tested), _LIMIT_S)
        for at, ((mix, _), result) in enumerate(zip(tested, results, strict=True)):
            found = settled(result, _LIMIT_S)
            said = rf"TODO ({'|'.join(left[at])}):" if left[at] else "$^"
            faults = found.faults() or ([] if found.tests else ["no test ran"])
            yield from (f"{mix}: {fault}" for fault in faults if not re.search(said, fault))
        log(f"{min(first + _AT_ONCE, number)} of {number} mixes")


def _trial(course: Course, mix: Mix, tested: Day, left: list[set[str]]) -> Trial:
    """The tests of a day for the learner of a mix; `left` gets what it was told to write itself."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        learner = jumped(course, mix, Path(folder) / "learner")
        left.append(learner.left)
        return learner.trial(tested.tasks, "--day", tested.id)


def jumped(course: Course, mix: Mix, folder: Path) -> SimulatedLearner:
    """A learner who wrote days of a mix, some in part, skipped the others, and did one task again."""
    draw, last = random.Random(mix.whim), mix.own[-1]
    learner = SimulatedLearner(course, folder, draw.choice(("", "_my")))
    for day in mix.own:
        learner.fill_before(day.id)
        left_out = 0.0 if day is last or draw.random() < 0.5 else draw.random()
        for task in day.tasks:
            names = [name for source in learner.sources.values() for name in source.task_of]
            learner.write(task, without={name for name in names if draw.random() < left_out})
    if (before := course.tasks_before(last.id)) and draw.random() < 0.5:
        task = draw.choice(before)
        learner.reset(task)
        learner.write(task)
        learner.fill_before(last.id)
    return learner
