"""`chunk-position`: what a chunk costs deep in its prompt, and how well a step's time is predicted."""

import random
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.report import Ratio, Section, timed_section
from tiny_llm_lab.metrics import percentile
from tiny_llm_lab.steps.calibration import THOROUGH, samples_of, time_steps
from tiny_llm_lab.steps.shapes import Step, chunk, decodes, work_of

from .config import BenchConfig

_DEPTHS: Final = (0, 1024, 2048, 4096)
_MAX_LEN: Final = 2560
_MAX_CHUNK: Final = 512
_CALIBRATION_ROUNDS: Final = 3
_NUM_HELD_OUT: Final = 24

Errors = tuple[list[float], list[float]]


def depths(limit: int, new: int) -> list[int]:
    """Where chunks of `new` tokens begin; none ends behind `limit`."""
    return sorted({max(0, min(depth, limit - new)) for depth in _DEPTHS})


def chunk_position(config: BenchConfig) -> Section:
    """Chunks at several depths in turns; then a calibration, and steps that it has not seen."""
    max_len = min(config.limit, _MAX_LEN)
    known, unknown = THOROUGH.steps(max_len, _MAX_CHUNK), held_out(max_len, _MAX_CHUNK, config.seed)
    chunks = [chunk(stored, config.chunk) for stored in depths(config.limit, config.chunk)]
    with config.runner([*known, *unknown, *chunks]) as runner:
        variants = [Variant(f"at {part.stored}", partial(runner.run, (part,))) for (part,) in chunks]
        seconds = time_variants(variants, config.rounds)
        times = time_steps(runner.run, [*known, *unknown], _CALIBRATION_ROUNDS)
    samples = samples_of(known, times[: len(known)])
    # Corrections off: the question is how good the fit is, not how fast it is corrected.
    model = config.llm.StepTimeModel(samples, newest=0.0)
    works = [work_of(step) for step in unknown]
    errors = prediction_errors(model, works, times[len(known) :])
    return section(seconds, config.chunk, model, len(known), errors)


def prediction_errors(
    model: Any, works: Sequence[tuple[int, int, int]], times: Sequence[Sequence[float]]
) -> Errors:
    """Relative errors against the median of a step's runs, and against every single run.

    `works` are the steps' num_tokens, attention_tokens and kv_tokens_read.
    """
    of_medians, of_runs = [], []
    for work, seconds in zip(works, times, strict=True):
        predicted_s = model.predict(*work)
        of_medians.append(abs(predicted_s / median(seconds) - 1))
        of_runs += [abs(predicted_s / took - 1) for took in seconds]
    return of_medians, of_runs


def section(
    seconds: dict[str, tuple[float, ...]], new: int, model: Any, num_samples: int, errors: Errors
) -> Section:
    """The times at each depth, each depth against the first, and the model's errors."""
    first, *others = seconds
    percentiles = [{f"p{p}": percentile(values, p) for p in (50, 90)} for values in errors]
    said = [
        f"{what}: p50 {found['p50']:.1%}, p90 {found['p90']:.1%}"
        for what, found in zip(("medians", "single runs"), percentiles, strict=True)
    ]
    return timed_section(
        "chunk-position",
        f"chunk-position: a chunk of {new} tokens by the number of tokens before it",
        seconds,
        [Ratio.of(f"{name} / {first}", seconds[name], seconds[first]) for name in others],
        [
            f"Step-time model, fitted to {num_samples} steps, relative error on {len(errors[0])} others; "
            f"{'; '.join(said)}."
        ],
        {
            "calibration": calibration_json(model),
            "error": {"of_medians": percentiles[0], "of_runs": percentiles[1]},
        },
    )


def held_out(max_len: int, max_chunk: int, seed: int) -> list[Step]:
    """Steps inside the same bounds, drawn at random: what a model fitted to the grid has not seen."""
    draw = random.Random(seed)
    deepest = min(max_len, max(THOROUGH.stored) + 1)
    steps: list[Step] = []
    for _ in range(_NUM_HELD_OUT):
        count = draw.randrange(0, max(THOROUGH.decodes) + 1)
        step = decodes(count, draw.randrange(1, deepest))
        if count == 0 or draw.random() < 0.6:
            new = draw.randrange(8, min(max_chunk, max_len) + 1)
            step += chunk(draw.randrange(0, min(deepest, max_len - new + 1)), new)
        steps.append(step)
    return steps


def calibration_json(step_time: Any) -> dict[str, Any]:
    """A fitted step-time model as `simulate --calibration` reads it, in seconds; corrections left out."""
    return {
        "split_tokens": step_time.split_tokens,
        "small": list(step_time.small),
        "large": list(step_time.large),
    }
