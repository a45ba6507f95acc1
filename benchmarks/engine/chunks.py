"""The cost of chunks by their place in the prompt, their memory, and how well we predict a step's time."""

import random
from collections.abc import Sequence
from statistics import correlation, linear_regression, median
from typing import Any, Final

from benchmarks.engine.config import BenchConfig
from benchmarks.harness import Versus, timed_section
from tiny_llm_lab.measure.bench.chunk_memory import MEMORY_COLUMNS, memory_rows
from tiny_llm_lab.measure.bench.report import Section
from tiny_llm_lab.measure.simulate.setting import calibration_json
from tiny_llm_lab.runtime.metrics import percentile
from tiny_llm_lab.runtime.steps.calibration import MAX_CHUNK, MAX_LEN, THOROUGH, samples_of, time_steps
from tiny_llm_lab.runtime.steps.runner import Step, chunk, decodes, work_of

_DEPTHS: Final = (0, 1024, 2048, 4096)
_CALIBRATION_ROUNDS: Final = 3
_NUM_HELD_OUT: Final = 24
_SIZES: Final = (128, 512, 2048)
# The most bytes of scores that a chunk may make where attention is not computed in tiles.
_MOST_SCORES: Final = 4e9


def chunk_position(config: BenchConfig) -> Section:
    """Times chunks at several depths in turns; then calibrates, and predicts steps it has not seen."""
    seconds = config.time_steps(
        {f"at {stored}": [chunk(stored, config.chunk)] for stored in depths(config.limit, config.chunk)}
    )
    max_len = min(config.limit, MAX_LEN)
    known, unknown = THOROUGH.steps(max_len, MAX_CHUNK), held_out(max_len, MAX_CHUNK, config.seed)
    with config.runner([*known, *unknown]) as runner:
        times = time_steps(runner.run, [*known, *unknown], _CALIBRATION_ROUNDS)
    # Without corrections, because we ask how good the fit is, not how fast it is corrected.
    model = config.llm.StepTimeModel(samples_of(known, times[: len(known)]), newest=0.0)
    works = [work_of(step) for step in unknown]
    errors = prediction_errors(model, works, times[len(known) :])
    found = [{f"p{p}": percentile(values, p) for p in (50, 90)} for values in errors]
    said = "; ".join(
        f"{what}: p50 {each['p50']:.1%}, p90 {each['p90']:.1%}"
        for what, each in zip(("medians", "single runs"), found, strict=True)
    )
    tokens, middles = [work_of(step)[0] for step in [*known, *unknown]], [*map(median, times)]
    of_tokens = tokens_fit(tokens, middles)
    first, *others = seconds
    return timed_section(
        "chunk-position",
        f"chunk-position: a chunk of {config.chunk} tokens by the number of tokens before it",
        seconds,
        [Versus(f"{name} / {first}", name, first) for name in others],
        [
            f"Step-time model, fitted to {len(known)} steps, relative error on {len(unknown)} others; "
            f"{said}.",
            tokens_note(of_tokens, len(times)),
        ],
        tokens_fit=of_tokens,
        tokens_of_steps=tokens,
        seconds_of_steps=middles,
        calibration=calibration_json(model),
        error=dict(zip(("of_medians", "of_runs"), found, strict=True)),
    )


def tokens_fit(tokens: Sequence[int], seconds: Sequence[float]) -> dict[str, float | None]:
    """How far a step's tokens alone give its time: r, slope in s/token, intercept in s, and knee.

    The knee is intercept / slope, the tokens that take as long as the fixed part: below it a step costs about
    the same whatever its tokens, above it about as much as its tokens. None where the line has none.
    """
    slope, intercept = linear_regression(tokens, seconds)
    knee = intercept / slope if slope > 0 and intercept > 0 else None
    r = correlation(tokens, seconds) if len(set(seconds)) > 1 else None  # equal times follow nothing
    return {"r": r, "slope_s": slope, "intercept_s": intercept, "knee_tokens": knee}


def tokens_note(fit: dict[str, float | None], num_steps: int) -> str:
    """One sentence for `tokens_fit`."""
    knee = fit["knee_tokens"]
    said = "no knee" if knee is None else f"knee {knee:.0f} tokens, which take as long as the fixed part"
    slope_us, intercept_us = ((fit[key] or 0.0) * 1e6 for key in ("slope_s", "intercept_s"))
    r = "no r" if fit["r"] is None else f"r {fit['r']:.3f}"
    line = f"{intercept_us:.0f} µs + {slope_us:.3g} µs a token"
    return f"Tokens alone against time, {num_steps} steps: {r}, {line}; {said}."


def depths(limit: int, new: int) -> list[int]:
    """Where chunks of `new` tokens begin; none ends after `limit`."""
    return sorted({max(0, min(depth, limit - new)) for depth in _DEPTHS})


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


def prediction_errors(
    model: Any, works: Sequence[tuple[int, int, int]], times: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """Relative errors against the median of a step's runs, and against every single run.

    `works` are the steps' num_tokens, attention_tokens and kv_tokens_read.
    """
    predicted = [model.predict(*work) for work in works]
    pairs = list(zip(predicted, times, strict=True))
    of_medians = [abs(expected_s / median(seconds) - 1) for expected_s, seconds in pairs]
    return of_medians, [abs(expected_s / took - 1) for expected_s, seconds in pairs for took in seconds]


def memory(config: BenchConfig) -> Section:
    """The peak memory of a long prefill, for chunks of several sizes and for one piece."""
    length = min(config.memory_tokens, config.limit)
    sizes = [*(size for size in _SIZES if size < length), length]
    # Bytes of a chunk's scores in float32; kernels compute them in tiles.
    ops = config.model.ops
    one = 0 if ops and ops.name != "off" else 4 * config.model.config.num_attention_heads * length
    with config.runner([chunk(0, length)]) as runner:
        rows, pool_bytes = memory_rows(runner, length, [each for each in sizes if one * each <= _MOST_SCORES])
    note = (
        f"Held: the weights and {pool_bytes / 1e6:.1f} MB of blocks for the prompt. Re-read: stored "
        "tokens that later chunks read again, the sum of the chunks' starts; in one piece none."
    )
    title = f"memory: prefill of a prompt of {length} tokens"
    data = {"tokens": length, "pool_bytes": pool_bytes}
    return Section("memory", title, MEMORY_COLUMNS, rows, notes=[note], data=data)
