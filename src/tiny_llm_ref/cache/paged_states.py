"""The memory of a hybrid model in an engine: blocks for keys and values, and a state for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, cast

import mlx.core as mx

from tiny_llm_lab.types import DeltaRule, DeltaState, KernelOps, ModelConfig
from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.paged import StateUse, StepLayout

from .moment import Moment
from .paged_attention import PagedLayer
from .paged_kv_cache import PagedKvCache
from .state import no_state


class LayerStates:
    """The states of one layer, by slot and by snapshot. They are values: a step makes new ones."""

    def __init__(self) -> None:
        """Nothing is stored. Sets slots = {} and snapshots = {}: the `DeltaState` of each number."""
        self.slots: dict[int, DeltaState] = {}
        self.snapshots: dict[int, DeltaState] = {}
        self.drafted: dict[int, Moment] = {}  # by slot: steps with a draft that may still be rejected


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
        """As `PagedKvCache`. Sets states: one `LayerStates` for each layer that has them."""
        self.hybrid = hybrid
        self.states = [LayerStates() for _ in range(hybrid.num_states)]
        # The tokens that the states of a slot or a snapshot have seen, the same in every layer.
        self._seen: dict[int, int] = {}
        self._seen_by_snapshot: dict[int, int] = {}
        self._used: list[StateUse] = []  # in the last step
        super().__init__(config, num_blocks, block_size, dtype, kv_bits, ops)

    @property
    def pools(self) -> list[mx.array]:
        """As in `PagedKvCache`, and the states that the last step made."""
        made = [
            layer.slots[use.slot] for layer in self.states for use in self._used if use.slot in layer.slots
        ]
        made += [layer.snapshots[i] for layer in self.states for use in self._used for _, i in use.kept]
        return [*super().pools, *(part for state in made for part in state)]

    def begin_step(self, layout: StepLayout) -> list[PagedLayer]:
        """As in `PagedKvCache`, with a `StateLayer` for each layer that has a state.

        Raises ValueError also for a request whose state has not seen exactly the tokens before its rows.
        """
        pages = iter(super().begin_step(layout))
        states = iter(StateLayer(layer, layout, self.hybrid) for layer in self.states)
        self._go_on(layout)
        layers = [next(pages if kind == "full_attention" else states) for kind in self.hybrid.mixers]
        return cast(list[PagedLayer], layers)  # each goes to the mixer of its kind

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """After a step with a draft: take a slot's states back to the first `num_tokens` tokens."""
        num_rejected = self._seen[state_slot] - num_tokens
        for layer in self.states:
            moment = layer.drafted.pop(state_slot)
            if num_rejected:
                layer.slots[state_slot] = moment.state_after(len(moment.rows[0]) - num_rejected)
        self._seen[state_slot] = num_tokens

    def release(self) -> None:
        """As in `PagedKvCache`."""
        super().release()
        self.states, self._seen, self._used = [LayerStates() for _ in self.states], {}, []

    def _go_on(self, layout: StepLayout) -> None:
        """Put the states of snapshots that requests go on from into their slots.

        Raises ValueError unless every request starts anew or goes on where its states are.
        """
        for use, start in zip(layout.states, layout.query_starts[:-1], strict=True):
            if use.snapshot >= 0:
                self._seen[use.slot] = self._seen_by_snapshot[use.snapshot]
                for layer in self.states:
                    layer.slots[use.slot] = layer.snapshots[use.snapshot]
            num_before, seen = layout.positions[start], self._seen.get(use.slot, 0)
            if num_before not in (0, seen):
                raise ValueError(f"a state has seen {seen} tokens, and the next one is at {num_before}")
        for use, length in zip(layout.states, layout.lengths, strict=True):
            self._seen[use.slot] = length
            self._seen_by_snapshot.update((number, num_tokens) for num_tokens, number in use.kept)
        self._used = layout.states


@dataclass(eq=False)
class StateLayer:
    """The states of one layer in one step of packed rows [T, 1]."""

    states: LayerStates
    layout: StepLayout
    hybrid: HybridConfig

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

        A request without tokens before its rows starts from zeros. Keeps snapshots, and what drafts
        need, as the layout says. The row counts B and L are not read.
        """
        layout, firsts = self.layout, self.layout.query_starts[:-1]
        states = [
            self.states.slots[use.slot] if layout.positions[first] else no_state(self.hybrid.delta_net)
            for use, first in zip(layout.states, firsts, strict=True)
        ]
        for use, span, state in zip(layout.states, pairwise(layout.query_starts), states, strict=True):
            if use.num_drafted:
                inputs = [part[slice(*span)] for part in rows]
                self.states.drafted[use.slot] = Moment(rule, inputs, state)
        out = self._run(rule, rows, states)
        self.states.slots.update((use.slot, state) for use, state in zip(layout.states, states, strict=True))
        return out

    def _run(self, rule: DeltaRule, rows: Sequence[mx.array], states: list[DeltaState]) -> mx.array:
        """Run `rule`, cut where a snapshot is kept, and bring `states` up to date."""
        pieces = self._pieces()
        is_whole = all(len(each) == 1 for each in pieces)
        outs: dict[int, mx.array] = {}  # by their first row
        while any(pieces):
            turn = [(r, *left.pop(0)) for r, left in enumerate(pieces) if left]
            parts = rows if is_whole else [mx.concatenate([p[a:b] for _, a, b, _ in turn]) for p in rows]
            starts = [0, *accumulate(end - start for _, start, end, _ in turn)]
            out, after = rule(parts, [states[r] for r, *_ in turn], starts)
            if is_whole:
                outs[0] = out
            for (r, start, _, snapshot), state, span in zip(turn, after, pairwise(starts), strict=True):
                states[r] = state
                if not is_whole:
                    outs[start] = out[slice(*span)]
                if snapshot >= 0:
                    # A copy: a state may be a part of an array for all requests, which it would keep.
                    self.states.snapshots[snapshot] = (state[0] * 1, state[1] * 1)
        return outs[0] if len(outs) == 1 else mx.concatenate([outs[start] for start in sorted(outs)])

    def _pieces(self) -> list[list[tuple[int, int, int]]]:
        """For each request its rows in pieces: first row, end, and the snapshot after them or -1."""
        found = []
        for use, (start, end) in zip(self.layout.states, pairwise(self.layout.query_starts), strict=True):
            num_before = self.layout.positions[start]
            ends = [(start + num_tokens - num_before, snapshot) for num_tokens, snapshot in use.kept]
            if not ends or ends[-1][0] < end:
                ends.append((end, -1))
            firsts = [start, *(after for after, _ in ends)]
            found.append([(first, *each) for first, each in zip(firsts, ends, strict=False)])
        return found
