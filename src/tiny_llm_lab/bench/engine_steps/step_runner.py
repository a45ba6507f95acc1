"""Forward passes shaped like the engine's, over requests of any length, as often as one likes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from .setting import BLOCK_SIZE


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
    """A piece of a prompt that goes on behind it."""
    return (Part(stored, new),)


def work_of(step: Step) -> tuple[int, int, int]:
    """num_tokens, num_attended and num_stored of a step, as a step-time model counts them."""
    num_tokens = sum(part.new for part in step)
    num_attended = sum(part.new * part.stored + part.new * (part.new + 1) // 2 for part in step)
    return num_tokens, num_attended, sum(part.stored + part.new for part in step)


def blocks_of(step: Step) -> int:
    """Blocks that hold all tokens of a step's requests."""
    return sum(-(-(part.stored + part.new) // BLOCK_SIZE) for part in step)


class StepRunner:
    """Repeats a step without changing what it stands on: nobody's context grows."""

    def __init__(self, llm: Any, model: Any, steps: Sequence[Step], seed: int = 0) -> None:
        """Blocks for the largest of `steps`, full of random keys and values: no prompt is computed first."""
        self.llm, self.model = llm, model
        self.cache = model.create_paged_kv_cache(max(map(blocks_of, steps)), BLOCK_SIZE)
        key = mx.random.key(seed)
        for pools in (self.cache.keys, self.cache.values):
            for i, pool in enumerate(pools):
                key, own = mx.random.split(key)
                pools[i] = mx.random.normal(pool.shape, key=own).astype(pool.dtype)
        self.cache.materialize()
        most = max(work_of(step)[0] for step in steps)
        draw = np.random.default_rng(seed)
        self._tokens: list[int] = draw.integers(0, model.config.vocab_size, most).tolist()
        self._likeliest = llm.make_sampler()

    def run(self, step: Step) -> list[int]:
        """Lay out and compute a step as the engine does, and read the drawn tokens."""
        parts, rows, first, num_rows = [], [], 0, 0
        for part in step:
            count = blocks_of((part,))
            parts.append((range(first, first + count), part.stored, part.new))
            first += count
            num_rows += part.new
            if part.is_drawn:
                rows.append(num_rows - 1)
        layout = self.llm.StepLayout.of(BLOCK_SIZE, parts)
        layers = self.cache.begin_step(layout)
        tokens = mx.array(self._tokens[:num_rows])[:, None]
        logits = self.model(tokens, layout.positions, layers, rows=rows)[:, -1]
        drawn = self._likeliest(logits) if rows else logits
        mx.eval(drawn, self.cache.keys, self.cache.values)
        return [int(token) for token in drawn.tolist()] if rows else []

    def release(self) -> None:
        """Give the memory back."""
        self.cache.release()
