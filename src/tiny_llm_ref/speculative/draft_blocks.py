"""The blocks of a draft model: which tokens of each sequence are stored there, and its forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.types import DraftRequest, PagedModel, Proposer, Wanted
from tiny_llm_lab.types.computing.paged import PagedCache, Slice, StateUse

from ..cache.step_layout import StepLayout
from ..engine.sequence import TokenSequence

_SPARE = -2  # minus a slot: the number of the state that a draft of its sequence goes on from


class Rows(NamedTuple):
    """Rows of one sequence in a pass of a draft model."""

    sequence: TokenSequence
    at: Slice
    tokens: Sequence[int]  # the input of each row


@dataclass
class Drawn:
    """A draft that is being made."""

    request: DraftRequest
    tokens: list[int] = field(default_factory=list)
    probs: list[mx.array] = field(default_factory=list)


class DraftBlocks(Proposer):
    """Keys and values of a draft model, in blocks of the same numbers as those of the model that verifies."""

    keeps_blocks = True

    def __init__(self, model: PagedModel) -> None:
        """Sets model, and caches = [], which `create_cache` makes [the draft model's paged cache].

        A hybrid may not lag, because its states go on with each token.
        """
        self.model = model
        self.caches: list[PagedCache] = []
        self.is_stored, self.may_lag = bytearray(), model.config.hybrid is None

    def create_cache(self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None) -> None:
        """As `Proposer`."""
        self.caches[:] = [self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)]
        self.is_stored[:] = bytes(num_blocks)

    def follow(self, computed: Sequence[tuple[TokenSequence, Slice]]) -> int:
        """As `Proposer`: compute what a sequence has not stored, as soon as a block is full.

        The other tokens wait for a draft or for the end of their block. A block that the sequence shares with
        another, which has stored it, is not computed again. A sequence without blocks is left out.
        From task 4.4.5 on: a hybrid draft model goes on from, and keeps, the snapshots of the step.
        """
        size, behind = self.caches[0].block_size, list[Rows]()
        for sequence, at in computed:
            use, end, blocks = at.states, self._within(sequence.num_computed_tokens), sequence.block_ids
            shared = min(end, at.num_computed) // size if blocks else 0  # blocks
            start = min(max(sequence.num_read_tokens, 0 if self.may_lag else shared * size), end)
            while start // size < shared and self.is_stored[blocks[start // size]]:
                start = (start // size + 1) * size
            is_full = end // size > start // size or use.snapshot >= 0 or bool(use.kept)
            end, first = min(end, sequence.num_readable_tokens), max(0, shared - 1)
            if blocks and start < end and is_full:
                kept = tuple((n, number) for n, number in use.kept if start < n <= end)
                behind.append(self._rows(sequence, start, end, StateUse(use.slot, use.snapshot, kept)))
                start, first = end, min(first, start // size)
            sequence.num_read_tokens = start
            for i in range(first, len(blocks)):
                self.is_stored[blocks[i]] = (i + 1) * size <= start
        if behind:
            self.compute(behind, is_drawn=False)
        return sum(len(each.tokens) for each in behind)

    def compute(self, rows: Sequence[Rows], is_drawn: bool) -> mx.array:
        """Store these rows; returns the logits [n, V] after each of the n parts, or none, [0, V]."""
        layout = StepLayout.of(self.caches[0].block_size, [each.at for each in rows])
        tokens = [min(token, self.model.config.vocab_size - 1) for each in rows for token in each.tokens]
        lasts = [end - 1 for end in layout.query_starts[1:]] if is_drawn else []
        logits = self._forward(mx.array(tokens, mx.int32)[:, None], rows, layout, lasts)
        mx.async_eval(logits, self.caches[0].pools)
        return logits

    def _forward(
        self, tokens: mx.array, rows: Sequence[Rows], layout: StepLayout, lasts: Sequence[int]
    ) -> mx.array:
        """tokens [T, 1] of all `rows` -> the logits [n, V] of the n rows `lasts`."""
        memories = self.caches[0].begin_step(layout)
        return self.model(tokens, layout.positions, memories, wanted=Wanted(rows=lasts))[:, 0]

    def _rows(self, sequence: TokenSequence, start: int, end: int, use: StateUse) -> Rows:
        """The rows that store the known tokens `start` to `end`."""
        at = Slice(sequence.block_ids, start, end - start, use)
        return Rows(sequence, at, sequence.tokens_between(start, end))

    def next_rows(self, drawn: Drawn) -> Rows:
        """The rows whose last one has the logits of the next draft token."""
        sequence, num_drawn = drawn.request.sequence, len(drawn.tokens)
        end, spare = self._end(sequence), _SPARE - sequence.states.slot
        if num_drawn:
            at = Slice(sequence.block_ids, end + num_drawn - 1, 1, StateUse(spare))
            return Rows(sequence, at, drawn.tokens[-1:])
        start = min(sequence.num_read_tokens, end - 1)
        # The draft goes on from the spare state, and the state of the known tokens stays.
        slot, computed = sequence.states.slot, sequence.num_computed_tokens
        kept = ((computed, slot),) if start < computed else ()
        return self._rows(sequence, start, end, StateUse(spare, slot if start else -1, kept))

    def _end(self, sequence: TokenSequence) -> int:
        """How many rows must be stored before the first token is drawn."""
        return sequence.num_tokens

    def room(self, drawn: Drawn) -> int:
        """How many tokens a draft may have."""
        sequence = drawn.request.sequence
        most = self._within(len(sequence.block_ids) * self.caches[0].block_size)
        return min(drawn.request.num_tokens, most - self._end(sequence) + 1)

    def _within(self, num_tokens: int) -> int:
        return min(num_tokens, self.model.config.max_position_embeddings)

    def drafted(self, drawn: Drawn) -> None:
        """A draft of one or more tokens has ended: all of them but the last are stored.

        Without lag, states or hidden states are those of the known tokens, and the rest is overwritten.
        """
        sequence = drawn.request.sequence
        num_stored = sequence.num_tokens + len(drawn.tokens) - 1
        sequence.num_read_tokens = num_stored if self.may_lag else sequence.num_computed_tokens
