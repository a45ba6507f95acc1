"""Forward passes shaped like an engine's, over requests of any length, any number of times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np

from tiny_llm_lab.types import Wanted, attention_tokens
from tiny_llm_lab.types.computing.paged import Slice


@dataclass(frozen=True)
class Part:
    """One request's part of a step: `new` tokens behind `stored`; whether a token is drawn at its end."""

    stored: int
    new: int
    is_drawn: bool = False


Step = tuple[Part, ...]


def decodes(count: int, stored: int) -> Step:
    """`count` requests that take one token each."""
    return (Part(stored, 1, is_drawn=True),) * count


def chunk(stored: int, new: int) -> Step:
    """A chunk of a prompt that does not end it."""
    return (Part(stored, new),)


def work_of(step: Step) -> tuple[int, int, int]:
    """num_tokens, attention_tokens and kv_tokens_read of a step, as in a `StepSample`."""
    attention = sum(attention_tokens(part.stored, part.new) for part in step)
    return sum(part.new for part in step), attention, sum(part.stored + part.new for part in step)


def blocks_of(step: Step, block_size: int) -> int:
    """Blocks that hold all tokens of a step's requests."""
    return sum(-(-(part.stored + part.new) // block_size) for part in step)


@dataclass(frozen=True)
class StepGrid:
    """Steps that differ in size and depth, to fit a step-time model."""

    stored: tuple[int, ...]  # tokens that every request has stored before
    decodes: tuple[int, ...]
    chunks: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...] = ()  # (decodes, tokens of the chunk in the same step)

    def steps(self, max_len: float = math.inf, max_chunk: float = math.inf) -> list[Step]:
        """Decodes, chunks, and both together, at every depth; no request longer than `max_len`."""
        results: list[Step] = []
        for stored in self.stored:
            results += [decodes(count, stored) for count in self.decodes]
            results += [chunk(stored, new) for new in self.chunks]
            results += [decodes(count, stored) + chunk(stored, new) for count, new in self.mixed]
        return [
            step
            for step in results
            if all(part.stored + part.new <= max_len and part.new <= max_chunk for part in step)
        ]


class StepRunner:
    """Repeats a step without changing its input; no request's context grows."""

    def __init__(
        self, llm: Any, model: Any, steps: Sequence[Step], seed: int = 0, *, block_size: int = 16
    ) -> None:
        """Blocks for the largest of `steps`, full of random keys and values: no prompt is computed first."""
        self.llm, self.model, self.block_size = llm, model, block_size
        self.cache = model.create_paged_kv_cache(
            max(blocks_of(step, block_size) for step in steps), block_size
        )
        key = mx.random.key(seed)
        for pools in (self.cache.keys, self.cache.values):
            for i, pool in enumerate(pools):
                key, own = mx.random.split(key)
                pools[i] = mx.random.normal(pool.shape, key=own).astype(pool.dtype)
        self.cache.materialize()
        most = max(sum(part.new for part in step) for step in steps)
        draw = np.random.default_rng(seed)
        self._tokens: list[int] = draw.integers(0, model.config.vocab_size, most).tolist()

    def run(self, step: Step) -> list[int]:
        """Lay out and compute a step as the engine does, and read the drawn tokens."""
        slices, rows, first, num_rows = [], [], 0, 0
        for part in step:
            count = blocks_of((part,), self.block_size)
            slices.append(Slice(range(first, first + count), part.stored, part.new))
            first += count
            num_rows += part.new
            if part.is_drawn:
                rows.append(num_rows - 1)
        layout = self.llm.StepLayout.of(self.block_size, slices)
        layers = self.cache.begin_step(layout)
        tokens = mx.array(self._tokens[:num_rows])[:, None]
        logits = self.model(tokens, layout.positions, layers, wanted=Wanted(rows=rows))[:, -1]
        drawn = mx.argmax(logits, axis=-1) if rows else logits
        mx.eval(drawn, self.cache.pools)
        return cast(list[int], drawn.tolist()) if rows else []

    def __enter__(self) -> "StepRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Free the memory."""
        self.cache.release()
