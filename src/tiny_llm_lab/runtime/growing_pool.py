"""Pools of keys and values that have only the blocks used so far, not all that there may be.

The scheduler plans with all blocks from the start. It takes free ones in the order of their numbers, those
that were never used before those that are cached. So nothing is stored after the highest slot of all steps,
and memory there can wait for the step that writes it. Plans and answers do not change.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.types import Memory, PagedModel, RequestKvCache, Wanted
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

# A pool begins with this part of its blocks and doubles, so that all copies together are as large as it is.
_PARTS: Final = 64


class GrowingModel:
    """A `PagedModel` that computes what another one does, and whose paged caches grow."""

    def __init__(self, model: PagedModel, pools: "list[GrowingPool] | None" = None) -> None:
        """Sets config and ops, those of `model`, and pools, which gets the cache that was created last.

        A model and its draft model share `pools`.
        """
        self.config, self.ops = model.config, model.ops
        self.pools: list[GrowingPool] = [] if pools is None else pools
        self._model = model
        self._pool: GrowingPool | None = None

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As the model."""
        return self._model(tokens, offset, cache, wanted=wanted)

    @property
    def hidden(self) -> Callable[..., mx.array]:
        """As the model."""
        return self._model.hidden

    def logits(self, hidden: mx.array) -> mx.array:
        """As the model."""
        return self._model.logits(hidden)

    def create_kv_cache(self) -> list[RequestKvCache]:
        """As the model."""
        return self._model.create_kv_cache()

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int, kv_bits: int | None = None
    ) -> "GrowingPool":
        """Storage for `num_blocks` blocks, most of it allocated later."""
        step = -(-num_blocks // _PARTS)
        cache = self._model.create_paged_kv_cache(step, block_size, kv_bits)
        pool = GrowingPool(cache, num_blocks, step)
        self.pools[:] = [each for each in self.pools if each is not self._pool] + [pool]
        self._pool = pool
        return pool


class GrowingPool:
    """A `PagedCache` of `num_blocks` blocks, on one that has the first of them."""

    def __init__(self, cache: PagedCache, num_blocks: int, step: int) -> None:
        """`cache` has the first `step` blocks. Sets num_blocks, block_size, and stored, which is `cache`."""
        self.num_blocks, self.block_size = num_blocks, cache.block_size
        self.stored, self._step = cache, step
        self.cut_back, self.materialize, self.release = cache.cut_back, cache.materialize, cache.release

    @property
    def num_stored(self) -> int:
        """How many blocks have memory."""
        return self.stored.num_blocks

    @property
    def keys(self) -> list[mx.array]:
        return self.stored.keys

    @property
    def values(self) -> list[mx.array]:
        return self.stored.values

    @property
    def key_scales(self) -> list[mx.array]:
        return self.stored.key_scales

    @property
    def value_scales(self) -> list[mx.array]:
        return self.stored.value_scales

    @property
    def pools(self) -> list[mx.array]:
        return self.stored.pools

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that have memory."""
        return self.stored.nbytes

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """As `PagedCache`, with memory for all that the step writes: what it reads was written before."""
        slots = cast(list[int], layout.slots.tolist())
        self.reach(max(slots, default=0) // self.block_size + 1)
        return self.stored.begin_step(layout)

    def reach(self, num_blocks: int) -> None:
        """Let the first `num_blocks` blocks have memory, if there may be so many."""
        if self.num_stored < num_blocks <= self.num_blocks:
            self._resize(self._in_steps(num_blocks))

    def cut_behind(self, block_ids: Sequence[int]) -> None:
        """Free the memory after the last of `block_ids`, the blocks in use; its contents are lost."""
        needed = self._in_steps(max(block_ids, default=0) + 1)
        if needed < self.num_stored:
            self._resize(needed)

    def _in_steps(self, num_blocks: int) -> int:
        steps = -(-num_blocks // self._step)
        return min(self.num_blocks, self._step << max(0, steps - 1).bit_length())

    def _resize(self, num_blocks: int) -> None:
        """Copies one array after the other and frees each old one at once, so that only one exists twice.

        A step that is being computed ends first, since the arrays are its results.
        """
        cache = self.stored
        for arrays in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
            for i in range(len(arrays)):
                arrays[i] = _resized(arrays[i], num_blocks)
                mx.eval(arrays[i])
                mx.clear_cache()
        cache.num_blocks = num_blocks


def _resized(pool: mx.array, num_blocks: int) -> mx.array:
    missing = num_blocks - len(pool)
    if missing <= 0:
        return pool[mx.arange(num_blocks)]  # a slice would keep the whole pool
    return mx.pad(pool, [(0, missing), *[(0, 0)] * (pool.ndim - 1)])
