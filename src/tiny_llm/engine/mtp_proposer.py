"""Drafts by a checkpoint's own draft layer, from the hidden states of the model's last step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Draft, DraftSampler, UserError
from tiny_llm_lab.types.computing.paged import Slice

from ..cache.step_layout import StepLayout
from ..models.mtp_model import HiddenStep, MtpModel
from .sequence import TokenSequence


@dataclass
class _Next:
    """What the draft layer says of a request after its known tokens."""

    sequence: TokenSequence
    num_tokens: int
    hidden: mx.array  # [1, E]
    logits: mx.array  # [1, V]


class MtpProposer:
    """Drafts the token after the newest one in a batch for all requests, and more of them one at a time.

    The layer has computed a position once the token after it is certain. What it stored for a draft token is
    overwritten then. Its keys and values only decide how good a draft is.
    """

    def __init__(self, model: MtpModel, num_tokens: int = 1) -> None:
        """Draft `num_tokens` tokens with the draft layer of the engine's model."""
        if num_tokens < 1:
            raise UserError(f"num_tokens must be 1 or more, not {num_tokens}")
        self.num_tokens = num_tokens
        self._model = model
        self._next: dict[str, _Next] = {}

    def prepare(self, sequences: Sequence[TokenSequence]) -> None:
        """Bring the draft layer up to date with the last step of the running `sequences`."""
        if (step := self._model.take_step()) is None:
            return
        index = {use.slot: r for r, use in enumerate(step.layout.states)}
        served = [(each, index[each.states.slot]) for each in sequences if each.states.slot in index]
        if served:
            self._catch_up(step, served)

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens, drawn by `sampler.draft`; none for a text that is not the request's own.

        A draft ends where the request's blocks end.
        """
        known = self._next.pop(request_id or "", None)
        if known is None or known.num_tokens != len(token_ids) or sampler is None:
            return Draft()
        tokens: list[int] = []
        probs: list[mx.array] = []
        hidden, logits = known.hidden, known.logits
        # Positions behind the known ones that have a block.
        room = len(known.sequence.block_ids) * self._model.block_size - known.num_tokens + 1
        for i in range(min(self.num_tokens, room + 1)):
            if i:
                at = Slice(known.sequence.block_ids, known.num_tokens - 2 + i, 1)
                layout = StepLayout.of(self._model.block_size, [at])
                hidden, logits = self._model.draft(hidden, tokens[-1:], layout, [0])
            token, row = sampler.draft(logits, len(token_ids) + i)
            tokens.append(token)
            probs += [] if row is None else [row]
        return Draft(tuple(tokens), mx.stack(probs) if probs else None)

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._next.pop(request_id, None)

    def _catch_up(self, step: HiddenStep, served: Sequence[tuple[TokenSequence, int]]) -> None:
        slices, tokens, rows, last, drafted = [], cast(list[int], []), cast(list[int], []), [], []
        for sequence, r in served:
            start, end = step.layout.query_starts[r : r + 2]
            first = step.layout.positions[start]
            count = min(end - start, sequence.num_computed_tokens - first)  # without rejected ones
            slices.append(Slice(sequence.block_ids, first, count))
            tokens += sequence.tokens_between(first + 1, first + count + 1)
            rows += range(start, start + count)
            if sequence.is_decoding:
                last.append(len(rows) - 1)
                drafted.append(sequence)
        layout = StepLayout.of(self._model.block_size, slices)
        hidden, logits = self._model.draft(step.hidden[mx.array(rows)], tokens, layout, last)
        for i, each in enumerate(drafted):
            known = _Next(each, each.num_tokens, hidden[i : i + 1], logits[i : i + 1])
            self._next[each.request_id] = known
