"""The memory of a hybrid model in an engine: blocks for keys and values, and a state for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.types import DeltaRule, DeltaState, Memory, ModelConfig
from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.layer_stack import StackStep
from tiny_llm_lab.types.computing.paged import StateUse

from .paged_kv_cache import PagedKvCache
from .state import no_state
from .step_layout import StepLayout


class Piece(NamedTuple):
    """Rows of a request up to where a snapshot is kept, or to its last row."""

    request: int
    start: int
    end: int
    snapshot: int  # after these rows; -1: none


@dataclass(frozen=True)
class Moment:
    """A step of one sequence, to be done again up to any of its tokens: the state before, and the inputs.

    This reads no weights but those of the rule, and gives the state to the bit if the rule has one order.
    """

    rule: DeltaRule
    rows: Sequence[mx.array]  # [n, ...]
    before: DeltaState

    def state_after(self, num_tokens: int) -> DeltaState:
        """The state after the first `num_tokens` of the step's tokens."""
        if num_tokens == 0:
            return self.before
        rows = [part[:num_tokens] for part in self.rows]
        return self.rule(rows, [self.before], [0, num_tokens])[1][0]


class LayerStates:
    """The states of one layer, by number: those of slots and of snapshots. A step makes new ones."""

    def __init__(self) -> None:
        """Nothing is stored. Sets states = {}, the `DeltaState` of each number: a slot is no snapshot too."""
        self.states: dict[int, DeltaState] = {}
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
    ) -> None:
        """As `PagedKvCache`. Sets states: one `LayerStates` for each layer that has them."""
        self.hybrid = hybrid
        self.states = [LayerStates() for _ in range(hybrid.num_states)]
        self.seen: dict[int, int] = {}  # by number: the tokens that its states have seen, in every layer
        self._used: list[StateUse] = []  # in the last step
        super().__init__(config, num_blocks, block_size, dtype, kv_bits)

    @property
    def pools(self) -> list[mx.array]:
        """As in `PagedKvCache`, and the states that the last step made."""
        made = [number for use in self._used for number in (use.slot, *(kept for _, kept in use.kept))]
        states = (layer.states[number] for layer in self.states for number in made if number in layer.states)
        return [*super().pools, *(part for state in states for part in state)]

    def begin_step(self, layout: StepLayout) -> Sequence[Memory]:
        """As in `PagedKvCache`, with a `StateLayer` for each layer that has a state.

        Raises ValueError also for a request whose state has not seen exactly the tokens before its rows.
        """
        pages = iter(super().begin_step(layout))
        turns = _turns(layout)  # the same in every layer
        states = iter(StateLayer(layer, layout, self.hybrid, turns) for layer in self.states)
        self._go_on(layout)
        return [next(pages if kind == "full_attention" else states) for kind in self.hybrid.mixers]

    def cut_back(self, state_slot: int, num_tokens: int) -> None:
        """After a step with a draft: take a slot's states back to the first `num_tokens` tokens."""
        num_rejected = self.seen[state_slot] - num_tokens
        for layer in self.states:
            moment = layer.drafted.pop(state_slot)
            if num_rejected:
                layer.states[state_slot] = moment.state_after(len(moment.rows[0]) - num_rejected)
        self.seen[state_slot] = num_tokens

    def release(self) -> None:
        """As in `PagedKvCache`."""
        super().release()
        self.states, self.seen, self._used = [LayerStates() for _ in self.states], {}, []

    def _go_on(self, layout: StepLayout) -> None:
        """Put the states of snapshots that requests go on from into their slots.

        Raises ValueError unless every request starts anew or goes on where its states are.
        """
        for use, num_before in zip(layout.states, _num_before(layout), strict=True):
            if use.snapshot >= 0:
                self.seen[use.slot] = self.seen[use.snapshot]
                for layer in self.states:
                    layer.states[use.slot] = layer.states[use.snapshot]
            seen = self.seen.get(use.slot, 0)
            if num_before not in (0, seen):
                raise ValueError(f"a state has seen {seen} tokens, and the next one is at {num_before}")
        for use, length in zip(layout.states, layout.lengths, strict=True):
            self.seen[use.slot] = length
            self.seen.update((number, num_tokens) for num_tokens, number in use.kept)
        self._used = layout.states


@dataclass(eq=False)
class StateLayer(Memory):
    """The states of one layer in one step of packed rows [T, 1]."""

    states: LayerStates
    layout: StepLayout
    hybrid: HybridConfig
    turns: Sequence[Sequence[Piece]]  # the rows of all requests, in the order in which they are computed

    def offsets(self, num_rows: int) -> list[int]:
        """The positions [T] of the rows, whatever `num_rows` is."""
        return self.layout.positions

    def update(
        self, rule: DeltaRule, rows: Sequence[mx.array], num_rows: int, num_new_tokens: int
    ) -> mx.array:
        """Run `rule` over the rows [T, ...] of all requests from their states on, and keep the new ones.

        A request without tokens before its rows starts from zeros. Keeps snapshots, copies that keep no
        other request's state in memory, and what drafts need, as the layout says. The row counts B and L are
        not read.
        """
        layout, states = self.layout, self._before()
        for use, span, state in zip(layout.states, pairwise(layout.query_starts), states, strict=True):
            if use.num_drafted:
                inputs = [part[slice(*span)] for part in rows]
                self.states.drafted[use.slot] = Moment(rule, inputs, state)
        out = self._run(rule, rows, states)
        self.states.states.update((use.slot, state) for use, state in zip(layout.states, states, strict=True))
        return out

    def enter(self, step: StackStep) -> bool:
        """See `Memory`: False if the step keeps a state within it, or one for a draft."""
        step.states.append(self._before())
        step.starts = self.layout.query_starts
        return not any(use.kept or use.num_drafted for use in self.layout.states)

    def leave(self, step: StackStep) -> None:
        """See `Memory`: the new states go into the slots."""
        slots = (use.slot for use in self.layout.states)
        self.states.states.update(zip(slots, step.states.pop(0), strict=True))

    def _before(self) -> list[DeltaState]:
        """The state of each request before the step."""
        return [
            self.states.states[use.slot] if num_before else no_state(self.hybrid.delta_net)
            for use, num_before in zip(self.layout.states, _num_before(self.layout), strict=True)
        ]

    def _run(self, rule: DeltaRule, rows: Sequence[mx.array], states: list[DeltaState]) -> mx.array:
        """Run `rule`, cut where a snapshot is kept, and bring `states` up to date."""
        if len(self.turns) == 1:
            return self._turn(rule, rows, self.turns[0], states)
        outs: dict[int, mx.array] = {}  # by their first row
        for turn in self.turns:
            parts = [mx.concatenate([part[each.start : each.end] for each in turn]) for part in rows]
            out, first = self._turn(rule, parts, turn, states), 0
            for each in turn:
                end = first + each.end - each.start
                outs[each.start], first = out[first:end], end
        return mx.concatenate([outs[start] for start in sorted(outs)])

    def _turn(
        self, rule: DeltaRule, rows: Sequence[mx.array], turn: Sequence[Piece], states: list[DeltaState]
    ) -> mx.array:
        """Run `rule` over the rows of one piece of some requests."""
        starts = [0, *accumulate(each.end - each.start for each in turn)]
        out, after = rule(rows, [states[each.request] for each in turn], starts)
        for each, state in zip(turn, after, strict=True):
            states[each.request] = state
            if each.snapshot >= 0:
                # A copy: a state may be a part of an array for all requests, which it would keep.
                self.states.states[each.snapshot] = (state[0] * 1, state[1] * 1)
        return out


def _num_before(layout: StepLayout) -> list[int]:
    """How many tokens of each request come before its rows."""
    spans = pairwise(layout.query_starts)
    return [length - (end - start) for length, (start, end) in zip(layout.lengths, spans, strict=True)]


def _turns(layout: StepLayout) -> list[list[Piece]]:
    """The first piece of each request, then the second of each that has one, and so on."""
    turns: dict[int, list[Piece]] = {}
    parts = zip(layout.states, pairwise(layout.query_starts), _num_before(layout), strict=True)
    for r, (use, (start, end), num_before) in enumerate(parts):
        cuts = [(start + num_tokens - num_before, snapshot) for num_tokens, snapshot in use.kept]
        if not cuts or cuts[-1][0] < end:
            cuts.append((end, -1))
        for i, (cut, snapshot) in enumerate(cuts):
            turns.setdefault(i, []).append(Piece(r, start, cut, snapshot))
            start = cut
    return [*turns.values()]
