"""Times steps of the engine on this machine, before the first request and in `bench-engine`."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.solution import Serving
from tiny_llm_lab.runtime.steps.runner import Step, StepGrid, StepRunner, work_of
from tiny_llm_lab.types import Clock, StepSample, UserError

# For a quick start, and for judging a fit.
AT_START: Final = StepGrid(stored=(0, 128, 512), decodes=(1, 4, 16), chunks=(16, 64, 256))
THOROUGH: Final = StepGrid(
    stored=(0, 512, 2048),
    decodes=(1, 4, 8, 16),
    chunks=(16, 32, 64, 128, 256, 512),
    mixed=((8, 64), (8, 256)),
)
MAX_LEN, MAX_CHUNK = 2560, 512  # tokens of a request and of a chunk among the thorough steps
_FEWEST_SAMPLES: Final = 3  # a StepTimeModel needs so many


def calibrate(
    model: Any,
    llm: Serving,
    steps: Sequence[Step] | None = None,
    *,
    block_size: int = 16,
    rounds: int = 3,
    limit_s: float = 3.0,
    clock: Clock = time.perf_counter,
) -> list[StepSample]:
    """Time `steps` (None: those of AT_START) in rounds; return samples of their medians.

    They run on a paged cache of their own, given back at the end, with random tokens. Small steps come
    first and none begins after `limit_s`, as in `time_steps`; what was not timed is left out. Raises
    UserError when the model has no room for three of them.
    """
    limit = model.config.max_position_embeddings
    fitting = [
        step
        for step in (AT_START.steps() if steps is None else steps)
        if all(part.stored + part.new <= limit for part in step)
    ]
    fitting.sort(key=lambda step: sum(part.new for part in step))
    if len(fitting) < _FEWEST_SAMPLES:
        raise UserError(f"the model takes only {limit} tokens, too few to time its steps: leave out the SLO")
    with StepRunner(llm, model, fitting, block_size=block_size) as runner:
        runner.run(fitting[0])  # the very first pass builds what later ones reuse
        times = time_steps(runner.run, fitting, rounds, limit_s=limit_s, clock=clock)
    return samples_of(fitting[: len(times)], times)


def time_steps(
    run: Callable[[Step], object],
    steps: Sequence[Step],
    rounds: int,
    *,
    limit_s: float = math.inf,
    clock: Clock = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each step, once a round, so that a slow phase of the machine meets all of them.

    A shape is slower when it is new: a first round counts only for steps that come to no other. After
    `limit_s` no step begins, except for the first three; those that never began have no entry.
    """
    first: list[float] = []
    later: list[list[float]] = [[] for _ in steps]
    start_s = clock()
    # Always forwards, so that the small steps are timed first if time runs out.
    for number, i in interleave(range(len(steps)), rounds, warm_ups=1, alternate=False):
        began_s = clock()
        if began_s - start_s > limit_s and len(first) >= _FEWEST_SAMPLES:
            break
        run(steps[i])
        (first if number < 0 else later[i]).append(max(clock() - began_s, 1e-9))
    return [seconds or [cold] for cold, seconds in zip(first, later, strict=False)]


def samples_of(steps: Sequence[Step], times: Sequence[Sequence[float]]) -> list[StepSample]:
    """A sample of each step and the median of its times."""
    return [StepSample(*work_of(step), median(seconds)) for step, seconds in zip(steps, times, strict=True)]
