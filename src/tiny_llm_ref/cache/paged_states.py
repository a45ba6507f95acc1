"""The memory of a hybrid model in an engine: blocks for keys and values, and a state for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import mlx.core as mx

from tiny_llm_lab.types import DeltaRule, DeltaState, KernelOps, ModelConfig
from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.paged import StepLayout

from .paged_attention import PagedLayer
from .paged_kv_cache import PagedKvCache
from .state import no_state


class HybridKvCache(PagedKvCache):
    """A `PagedKvCache` of the layers with attention, and the states of the others by state slot."""

    def __init__(
        self,
        config: ModelConfig,
        hybrid: HybridConfig,
        num_blocks: int,
        block_size: int,
        dtype: mx.Dtype,
        kv_bits: int | None,
        ops: KernelOps | None,
    ) -> None:
        """As `PagedKvCache`. Sets states: for each layer with one those of the slots in use."""
        self.hybrid = hybrid
        self.states: list[dict[int, DeltaState]] = [{} for _ in range(hybrid.num_states)]
        self._seen: dict[int, int] = {}  # the tokens of each slot's states, the same in every layer
        super().__init__(config, num_blocks, block_size, dtype, kv_bits, ops)

    @property
    def pools(self) -> list[mx.array]:
        """As in `PagedKvCache`, and all states."""
        held = [part for layer in self.states for state in layer.values() for part in state]
        return [*super().pools, *held]

    def begin_step(self, layout: StepLayout) -> list[PagedLayer]:
        """As in `PagedKvCache`, with a `StateLayer` for each layer that has a state.

        Raises ValueError also for a request whose state has not seen exactly the tokens before its rows.
        """
        pages = iter(super().begin_step(layout))
        states = iter(StateLayer(self, i, layout) for i in range(len(self.states)))
        self._go_on(layout)
        layers = [next(pages if kind == "full_attention" else states) for kind in self.hybrid.mixers]
        return cast(list[PagedLayer], layers)  # each goes to the mixer of its kind

    def release(self) -> None:
        """As in `PagedKvCache`."""
        super().release()
        self.states, self._seen = [{} for _ in self.states], {}

    def _go_on(self, layout: StepLayout) -> None:
        """Raise ValueError unless every request starts anew or goes on where its states are."""
        for slot, start in zip(layout.state_slots, layout.query_starts[:-1], strict=True):
            num_before, seen = layout.positions[start], self._seen.get(slot, 0)
            if num_before not in (0, seen):
                raise ValueError(f"a state has seen {seen} tokens, and the next one is at {num_before}")
        self._seen.update(zip(layout.state_slots, layout.lengths, strict=True))


@dataclass(eq=False)
class StateLayer:
    """The states of one layer in one step of packed rows [T, 1]."""

    cache: HybridKvCache
    index: int  # among the layers with a state
    layout: StepLayout

    def offsets(self, num_rows: int) -> list[int]:
        """The positions [T] of the rows, whatever `num_rows` is."""
        return self.layout.positions

    def attention_mask(self, num_new_tokens: int) -> Literal["causal"]:
        """As in `PagedLayer`."""
        return "causal"

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over the rows [T, ...] of all requests from their states on, and keep the new ones.

        A request without tokens before its rows starts from zeros. The row counts B and L are not read.
        """
        held, layout = self.cache.states[self.index], self.layout
        before = [
            held[slot] if layout.positions[start] else no_state(self.cache.hybrid.delta_net)
            for slot, start in zip(layout.state_slots, layout.query_starts[:-1], strict=True)
        ]
        out, after = rule(rows, before, layout.query_starts)
        held.update(zip(layout.state_slots, after, strict=True))
        return out
