"""Measured steps of this machine: what a step-time model is fitted to, and what `simulate` can read."""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.types import Clock

from .step_runner import Step, StepRunner, chunk, decodes, work_of
from .turns import Side, take_turns

_CHUNKS: Final = (16, 32, 64, 128, 256, 512)
_STORED: Final = (0, 512, 2048)
_DECODES: Final = (1, 4, 8, 16)
_MIXED_CHUNKS: Final = (64, 256)
_NUM_HELD_OUT: Final = 24


def calibrate(
    llm: Any,
    model: Any,
    *,
    max_len: int = 2560,
    max_chunk: int = 512,
    rounds: int = 3,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[Any]:
    """`llm.StepSample` for every step of `grid`, the median of `rounds` rounds of it.

    Takes blocks for 17 requests of `max_len` tokens at most while it runs.
    """
    steps = grid(min(max_len, model.config.max_position_embeddings), max_chunk)
    runner = StepRunner(llm, model, steps, seed)
    times = measure(runner.run, steps, rounds, clock)
    runner.release()
    return samples_of(llm, steps, [median(seconds) for seconds in times])


def grid(max_len: int, max_chunk: int) -> list[Step]:
    """Decodes, chunks, and both together, at several depths; no request longer than `max_len`."""
    chunks = [new for new in _CHUNKS if new <= max_chunk]
    steps: list[Step] = []
    for stored in _STORED:
        steps += [decodes(count, max(1, stored)) for count in _DECODES if stored < max_len]
        steps += [chunk(stored, new) for new in chunks if stored + new <= max_len]
        steps += [
            decodes(8, max(1, stored)) + chunk(stored, new)
            for new in _MIXED_CHUNKS
            if new <= max_chunk and stored + new <= max_len
        ]
    return steps


def held_out(max_len: int, max_chunk: int, seed: int) -> list[Step]:
    """Steps inside the same bounds, drawn at random: what a model that was fitted to `grid` has not seen."""
    draw = random.Random(seed)
    deepest = min(max_len, max(_STORED) + 1)
    steps: list[Step] = []
    for _ in range(_NUM_HELD_OUT):
        count = draw.randrange(0, max(_DECODES) + 1)
        step = decodes(count, draw.randrange(1, deepest))
        if count == 0 or draw.random() < 0.6:
            new = draw.randrange(8, min(max_chunk, max_len) + 1)
            step += chunk(draw.randrange(0, min(deepest, max_len - new + 1)), new)
        steps.append(step)
    return steps


def measure(
    run: Callable[[Step], object], steps: Sequence[Step], rounds: int, clock: Clock = time.perf_counter
) -> list[tuple[float, ...]]:
    """Seconds of every step in every round."""
    sides = [Side(str(i), partial(run, step)) for i, step in enumerate(steps)]
    return list(take_turns(sides, rounds, clock=clock).values())


def samples_of(llm: Any, steps: Sequence[Step], seconds: Sequence[float]) -> list[Any]:
    """`llm.StepSample` of steps that took so long."""
    return [llm.StepSample(*work_of(step), took) for step, took in zip(steps, seconds, strict=True)]


def calibration_json(step_time: Any) -> dict[str, Any]:
    """A fitted step-time model as `simulate --calibration` reads it, in seconds; corrections left out."""
    return {
        "split_tokens": step_time.split_tokens,
        "small": list(step_time.small),
        "large": list(step_time.large),
    }
