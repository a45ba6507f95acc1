"""How long steps of the engine take here: a few of each size, timed before the first request comes."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.solution import Serving
from tiny_llm_lab.types import Clock, UserError

# Requests in a step with the new tokens of each: decodes, chunks.
_SHAPES: Final = ((1, 1), (4, 1), (16, 1), (1, 16), (1, 64), (1, 256))
# Tokens that each of them has stored before.
_CONTEXTS: Final = (0, 128, 512)
_REPEATS: Final = 3
_FEWEST_SAMPLES: Final = 3  # a StepTimeModel needs so many


def calibrate(
    model: Any,
    llm: Serving,
    *,
    block_size: int = 32,
    limit_s: float = 3.0,
    clock: Clock = time.perf_counter,
) -> list[Any]:
    """Time steps of up to 256 tokens behind up to 512 stored ones; return `llm.StepSample`s of their medians.

    They run on a paged cache of their own, given back at the end, with tokens 0. Small steps come first;
    after `limit_s` no other begins, and after a third of it each is run once. Raises UserError when
    the model has no room for three of them.
    """
    limit = model.config.max_position_embeddings
    grid = [
        [(context, new)] * count for context in _CONTEXTS for count, new in _SHAPES if context + new <= limit
    ]
    grid.sort(key=lambda requests: sum(new for _, new in requests))
    if len(grid) < _FEWEST_SAMPLES:
        raise UserError(f"the model takes only {limit} tokens, too few to time its steps: leave the SLO out")
    most = max(sum(_num_blocks(*request, block_size) for request in requests) for requests in grid)
    cache = model.create_paged_kv_cache(most, block_size)
    samples: list[Any] = []
    start_s = clock()
    try:
        _run(model, llm, cache, grid[0])  # the first pass of all builds what later ones find
        for requests in grid:
            elapsed_s = clock() - start_s
            if elapsed_s > limit_s and len(samples) >= _FEWEST_SAMPLES:
                break
            repeats = _REPEATS if elapsed_s < limit_s / 3 else 1
            seconds = list(_timed(model, llm, cache, requests, repeats, clock))
            samples.append(_sample(llm, requests, median(seconds)))
    finally:
        cache.release()
    return samples


def _timed(
    model: Any, llm: Serving, cache: Any, requests: Sequence[tuple[int, int]], repeats: int, clock: Clock
) -> Iterator[float]:
    if repeats > 1:
        _run(model, llm, cache, requests)  # a shape is slower when it is new
    for _ in range(repeats):
        start_s = clock()
        _run(model, llm, cache, requests)
        yield max(clock() - start_s, 1e-9)


def _run(model: Any, llm: Serving, cache: Any, requests: Sequence[tuple[int, int]]) -> None:
    parts, first = [], 0
    for context, new in requests:
        count = _num_blocks(context, new, cache.block_size)
        parts.append((range(first, first + count), context, new))
        first += count
    layout = llm.StepLayout.of(cache.block_size, parts)
    tokens = mx.zeros((len(layout.positions), 1), mx.int32)
    rows = [end - 1 for end in layout.query_starts[1:]]
    logits = model(tokens, layout.positions, cache.begin_step(layout), rows=rows)
    mx.eval(mx.argmax(logits, axis=-1), cache.pools)


def _sample(llm: Serving, requests: Sequence[tuple[int, int]], seconds: float) -> Any:
    return llm.StepSample(
        sum(new for _, new in requests),
        sum(llm.context_work(context, new) for context, new in requests),
        sum(context + new for context, new in requests),
        seconds,
    )


def _num_blocks(context: int, new: int, block_size: int) -> int:
    return -(-(context + new) // block_size)
