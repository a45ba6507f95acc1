"""Forward passes shaped like an engine's, over requests of any length, any number of times."""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.steps.shapes import Step, blocks_of
from tiny_llm_lab.types import Wanted
from tiny_llm_lab.types.computing.paged import Slice


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
