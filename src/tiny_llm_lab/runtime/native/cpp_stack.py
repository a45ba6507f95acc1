"""All layers of a model as one operator of the C++ kernels of a package."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.composed import furthest
from tiny_llm_lab.runtime.native.ops import KernelSet, NetStates, Stack
from tiny_llm_lab.types import DeltaState, LayerStack, LayerWeights, Offsets, Rotary, Wanted
from tiny_llm_lab.types.computing.layer_stack import NO_STEP_STATES, StepStates, Stored
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

_ROOM: Final = 64  # new storage has room for a multiple of this many tokens


class CppLayerStack:
    """`LayerStack` on the kernels. Its weights are computed by the first step, not before."""

    def __init__(self, kernels: KernelSet, layers: Sequence[LayerWeights], rope: Rotary) -> None:
        self._kernels, self._layers, self._rope = kernels, layers, rope
        norm = next((layer.key_norm for layer in layers if layer.key_norm is not None), None)
        # Without norms of heads all dimensions are rotated.
        self._dim = 2 * rope.periods.size if norm is None else norm.size
        self._states = NO_STEP_STATES

    def with_states(self, states: StepStates) -> LayerStack:
        """See `LayerStack.with_states`."""
        _ = self._stack  # once, and not in each copy
        bound = copy(self)
        bound._states = states
        return bound

    def over_rows(
        self,
        x: mx.array,
        offsets: Offsets,
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        wanted: Wanted,
    ) -> Stored | None:
        """See `LayerStack.over_rows`."""
        cos, sin = self._rope.tables(furthest(offsets, x.shape[1]))
        made = self._stack.over_rows(
            x, offsets, cos, sin, [list(keys), list(values)], self._dim**-0.5, *self._choice(wanted, x)
        )
        if made is None:
            return None
        x, (new_keys, new_values), after = made
        self._keep(after)
        return x, new_keys, new_values

    def over_new_rows(self, x: mx.array, wanted: Wanted) -> Stored:
        """See `LayerStack.over_new_rows`."""
        length = x.shape[1]
        cos, sin = self._rope.tables(length)
        room = -(-length // _ROOM) * _ROOM
        choice = self._choice(wanted, x)
        x, (keys, values), after = self._stack.over_new_rows(x, cos, sin, room, self._dim**-0.5, *choice)
        self._keep(after)
        return x, keys, values

    def over_pages(self, x: mx.array, cache: PagedCache, layout: StepLayout, wanted: Wanted) -> mx.array:
        """See `LayerStack.over_pages`."""
        cos, sin = self._rope.tables(furthest(layout.positions, 1))
        pools = [part for part in (cache.keys, cache.values, cache.key_scales, cache.value_scales) if part]
        where = (layout.slots, layout.query_starts, layout.lengths, layout.block_tables)
        x, pools, after = self._stack.over_pages(
            x, layout.positions, cos, sin, pools, *where, self._dim**-0.5, *self._choice(wanted, x)
        )
        self._keep(after)
        cache.keys[:], cache.values[:] = pools[:2]
        if len(pools) > 2:
            cache.key_scales[:], cache.value_scales[:] = pools[2:]
        return x

    @cached_property
    def _stack(self) -> Stack:
        return self._kernels.layer_stack(self._layers, self._dim, self._rope.traditional)

    def _choice(self, wanted: Wanted, x: mx.array) -> tuple[int, Sequence[int] | None, NetStates]:
        """How many tokens of each row of x [B, L, E] go on, which rows, and from which states."""
        return min(wanted.last, x.shape[1]), wanted.rows, (self._states.layers, self._states.starts)

    def _keep(self, after: Sequence[list[DeltaState]]) -> None:
        for layer, new in zip(self._states.layers, after, strict=True):
            layer[:] = new
