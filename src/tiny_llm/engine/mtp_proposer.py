"""Drafts by a checkpoint's own draft layer, from the hidden states of the model's steps."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, Wanted
from tiny_llm_lab.types.computing.paged import Slice, StateUse

from ..cache.step_layout import StepLayout
from ..models.mtp_model import MtpModel
from ..speculative.draft_blocks import Drawn, Rows
from ..speculative.proposers import DraftModelProposer
from .sequence import TokenSequence


class _Hidden(NamedTuple):
    """Hidden states of the model [n, E], from token `first` on."""

    first: int
    rows: mx.array


class MtpProposer(DraftModelProposer):
    """Drafts for the engine's model with its draft layer: a `DraftModelProposer` that reads hidden states.

    The layer's row of a token also needs the token after it, so the rows of the known tokens end with the
    last computed one. What the layer stored for a draft token is overwritten once the token is certain. A
    sequence of which no step was followed has no draft.
    """

    def __init__(self, model: MtpModel, num_tokens: int = 1) -> None:
        """Draft `num_tokens` tokens. Raises UserError for fewer than one."""
        super().__init__(cast(PagedModel, model.head), num_tokens)
        self._whole, self.may_lag = model, False  # hidden states are there once
        self._hidden: dict[str, _Hidden] = {}  # of rows that are not stored, and of the last computed one
        self._ahead: dict[str, mx.array] = {}  # [1, E]: what the layer made of the last draft token

    def create_cache(self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None) -> None:
        """As `DraftModelProposer`."""
        super().create_cache(num_blocks, block_size, kv_bits)
        self._hidden, self._ahead = {}, {}

    def follow(self, computed: Sequence[tuple[TokenSequence, Slice]]) -> int:
        """As `Proposer`, from the hidden states of the model's oldest step of these slices."""
        if not computed:  # a step of no request did not run the model
            return 0
        hidden, starts = self._whole.take_step([at for _, at in computed])
        for (sequence, at), first_row in zip(computed, starts[:-1], strict=True):
            last_row = first_row + sequence.num_computed_tokens - at.num_computed  # without rejected ones
            first, rows = at.num_computed, hidden[first_row:last_row]
            old = self._hidden.get(sequence.request_id)
            if old and old.first + len(old.rows) == at.num_computed:
                first, rows = old.first, mx.concatenate([old.rows, rows])
            if sequence.block_ids:
                self._hidden[sequence.request_id] = _Hidden(first, rows)
        num_rows = super().follow(computed)
        for sequence in (sequence for sequence, _ in computed if sequence.block_ids):
            first, rows = self._hidden[sequence.request_id]
            needed = min(sequence.num_read_tokens, sequence.num_computed_tokens - 1)
            kept = rows[mx.arange(needed - first, len(rows))]  # a slice would keep the whole step
            mx.async_eval(kept)
            self._hidden[sequence.request_id] = _Hidden(needed, kept)
        return num_rows

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""
        self._hidden.pop(request_id, None)

    def _forward(
        self, tokens: mx.array, rows: Sequence[Rows], layout: StepLayout, lasts: Sequence[int]
    ) -> mx.array:
        (memory,) = self.caches[0].begin_step(layout)
        hidden = mx.concatenate([self._seen(each) for each in rows])[:, None]
        out, logits = self._whole.head(hidden, tokens, layout.positions, memory, wanted=Wanted(rows=lasts))
        self._ahead = {each.sequence.request_id: out[i] for i, each in enumerate(rows)} if lasts else {}
        return logits[:, 0]

    def _seen(self, each: Rows) -> mx.array:
        """The hidden states [n, E] of some rows: the model's, or the layer's own after a draft token."""
        name, start = each.sequence.request_id, each.at.num_computed
        if start >= self._end(each.sequence):
            return self._ahead[name]
        first, hidden = self._hidden[name]
        return hidden[start - first : start - first + each.at.num_new]

    def _rows(self, sequence: TokenSequence, start: int, end: int, use: StateUse) -> Rows:
        at = Slice(sequence.block_ids, start, end - start)
        return Rows(sequence, at, sequence.tokens_between(start + 1, end + 1))

    def _end(self, sequence: TokenSequence) -> int:
        return sequence.num_tokens - 1

    def room(self, drawn: Drawn) -> int:
        known = self._hidden.get(drawn.request.sequence.request_id)
        return super().room(drawn) if known else 0
