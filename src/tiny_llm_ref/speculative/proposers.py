"""Cheap drafts of the next tokens: looked up in the text so far, or from a small model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import mlx.core as mx

from tiny_llm_lab.types import Draft, DraftRequest, PagedModel, TextProposer, UserError, Wanted
from tiny_llm_lab.types.computing.paged import NOT_RUNNING, PagedCache, Slice, StateUse

from ..cache.step_layout import StepLayout
from ..generate.sampler import sample_rows
from .verify import Drafter

if TYPE_CHECKING:  # the engine has a proposer
    from ..engine.sequence import TokenSequence

# Checkpoints of one family pad their vocabularies differently. A difference below this is padding.
_MAX_PADDING = 1024


class NgramProposer(TextProposer):
    """Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int = 4) -> None:
        """Look for the last `max_ngram` tokens, or fewer, down to `min_ngram`; draft `num_tokens`.

        Raises UserError unless 1 <= min_ngram <= max_ngram and 1 <= num_tokens.
        """
        if not 1 <= min_ngram <= max_ngram:
            raise UserError(f"n-grams must have 1 to max_ngram tokens, not {min_ngram} to {max_ngram}")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self.num_tokens = _checked(num_tokens)
        self._indexes: dict[str, _Occurrences] = {}

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        """Returns up to `num_tokens` tokens that followed an earlier occurrence of the text's last n-gram.

        It uses the longest n-gram that occurs earlier, and its most recent earlier occurrence, which may
        overlap with the end. The draft is empty if no n-gram of `min_ngram` tokens or more occurs earlier,
        and has one token if the n-gram has one token. With a `request_id` an index of the text is kept:
        `token_ids` must continue the tokens of the request's previous call, and a call takes time only for
        the new tokens and for the earlier places of the last token.
        """
        index = _Occurrences() if request_id is None else self._indexes.setdefault(request_id, _Occurrences())
        index.extend(token_ids)
        best, after = 0, 0
        for place in index.before_last():
            length = _matching(token_ids, place, self.max_ngram)
            if length > best:
                best, after = length, place + 1
            if best == self.max_ngram:
                break
        if best < self.min_ngram:
            return Draft()
        # One token says little about what follows, so most of a long draft would be rejected.
        num_tokens = self.num_tokens if best > 1 else 1
        return Draft(tuple(token_ids[after : after + num_tokens]))

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        self._indexes.pop(request_id, None)


class _Stored(NamedTuple):
    """How many tokens of a sequence are stored, when so many were computed."""

    num_stored: int
    num_computed: int
    num_preemptions: int


_NOTHING = _Stored(0, -1, 0)
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

    def draft(self) -> Draft:
        """The draft so far."""
        return Draft(tuple(self.tokens), mx.stack(self.probs) if self.probs else None)


class DraftModelProposer:
    """Drafts with a small model, whose keys and values are in blocks of the same numbers as the model's."""

    keeps_blocks = True

    def __init__(self, model: PagedModel, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`. `vocab_size` is the verifying model's (None = the same).

        Vocabularies may differ in padding: logits are cut, or padded with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and if the sizes differ by 1,024 or more. Sets model, vocab_size,
        num_tokens and caches = [].
        """
        own = model.config.vocab_size
        self.vocab_size = own if vocab_size is None else vocab_size
        if abs(own - self.vocab_size) >= _MAX_PADDING:
            raise UserError(
                f"the draft model has {own} tokens and the model {vocab_size}: "
                "choose two with the same tokenizer"
            )
        self.model, self.num_tokens = model, _checked(num_tokens)
        self.caches: list[PagedCache] = []
        self._stored: dict[str, _Stored] = {}

    def create_cache(self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None) -> None:
        """As `Proposer`. Sets caches = [the draft model's paged cache]."""
        self._stored = {}
        self.caches = [self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)]

    def follow(self, computed: Sequence[tuple[TokenSequence, Slice]]) -> int:
        """As `Proposer`: compute what a sequence has not stored, as soon as a block is full.

        The other tokens wait for a draft or for the end of their block. So each block that the prefix cache
        finds has the draft model's keys and values too. What a sequence got from there is stored already;
        after a preemption nothing is. A sequence without blocks is left out.
        From task 4.4.5 on: a hybrid draft model goes on from, and keeps, the snapshots of the step.
        """
        size, behind = self.caches[0].block_size, list[Rows]()
        for sequence, at in computed:
            if not sequence.block_ids:
                continue
            known, end = (
                self._stored.get(sequence.request_id, _NOTHING),
                self._within(sequence.num_computed_tokens),
            )
            is_known = known[1:] == (at.num_computed, sequence.num_preemptions)
            start = min(known.num_stored if is_known else at.num_computed, end)
            use = at.states
            if start < end and (end // size > start // size or use.snapshot >= 0 or use.kept):
                kept = tuple((n, number) for n, number in use.kept if start < n <= end)
                behind.append(self._rows(sequence, start, end, StateUse(use.slot, use.snapshot, kept)))
                start = end
            self._remember(sequence, start)
        if behind:
            self._compute(behind, is_drawn=False)
        return sum(len(each.tokens) for each in behind)

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        """As `Proposer`: each token is drawn by the request's drafter from the draft model's logits.

        All requests share a forward pass for each position, and the first pass computes what is not stored
        too. A draft ends at the draft model's max_position_embeddings, and with the sequence's blocks. For a
        token outside its vocabulary the draft model gets its last one. `probs` has the distributions that the
        drafters return.
        From task 4.4.5 on: a hybrid draft model has the states of the known tokens afterwards.
        """
        drafts = [Drawn(each) for each in asked]
        going = [each for each in drafts if self._room(each) > 0]
        while going:
            logits = self._compute([self._next(each) for each in going], is_drawn=True)
            _draw(self._fitted(logits), going)
            going = [each for each in going if len(each.tokens) < self._room(each)]
        for each in drafts:
            if each.tokens:
                sequence = each.request.sequence
                self._remember(sequence, self._num_right(sequence, len(each.tokens)))
        return [each.draft() for each in drafts]

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""
        self._stored.pop(request_id, None)

    def release(self) -> None:
        """As `Proposer`."""
        for cache in self.caches:
            cache.release()
        self.caches, self._stored = [], {}

    def _compute(self, rows: Sequence[Rows], is_drawn: bool) -> mx.array:
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

    def _rows(self, sequence: TokenSequence, start: int, end: int, use: StateUse = NOT_RUNNING) -> Rows:
        """The rows that store the known tokens `start` to `end`."""
        at = Slice(sequence.block_ids, start, end - start, use)
        return Rows(sequence, at, sequence.tokens_between(start, end))

    def _next(self, drawn: Drawn) -> Rows:
        """The rows whose last one has the logits of the next draft token."""
        sequence, num_drawn = drawn.request.sequence, len(drawn.tokens)
        end, spare = self._end(sequence), _SPARE - sequence.states.slot
        if num_drawn:
            at = Slice(sequence.block_ids, end + num_drawn - 1, 1, StateUse(spare))
            return Rows(sequence, at, drawn.tokens[-1:])
        known = self._stored.get(sequence.request_id, _NOTHING)
        start = min(known.num_stored, end - 1)
        # The draft goes on from the spare state, and the state of the known tokens stays.
        slot, computed = sequence.states.slot, sequence.num_computed_tokens
        kept = ((computed, slot),) if start < computed else ()
        return self._rows(sequence, start, end, StateUse(spare, slot if start else -1, kept))

    def _end(self, sequence: TokenSequence) -> int:
        """How many rows must be stored before the first token is drawn."""
        return sequence.num_tokens

    def _room(self, drawn: Drawn) -> int:
        """How many tokens a draft may have."""
        sequence = drawn.request.sequence
        most = self._within(len(sequence.block_ids) * self.caches[0].block_size)
        return min(drawn.request.num_tokens, most - self._end(sequence) + 1)

    def _within(self, num_tokens: int) -> int:
        return min(num_tokens, self.model.config.max_position_embeddings)

    def _num_right(self, sequence: TokenSequence, num_drawn: int) -> int:
        """How many tokens are stored after a draft, if all of it is accepted."""
        is_hybrid = self.model.config.hybrid is not None
        return sequence.num_computed_tokens if is_hybrid else sequence.num_tokens + num_drawn - 1

    def _remember(self, sequence: TokenSequence, num_stored: int) -> None:
        stored = _Stored(num_stored, sequence.num_computed_tokens, sequence.num_preemptions)
        self._stored[sequence.request_id] = stored

    def _fitted(self, logits: mx.array) -> mx.array:
        """Returns logits [n, V of the draft model] as [n, vocab_size]."""
        missing = self.vocab_size - logits.shape[-1]
        if missing <= 0:
            return logits[:, : self.vocab_size]
        return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)


class _Occurrences:
    """The earlier places of each token of a text. Each place links to the token's previous place."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._before: list[int] = []

    def extend(self, token_ids: Sequence[int]) -> None:
        for place in range(len(self._before), len(token_ids)):
            self._before.append(self._last.get(token_ids[place], -1))
            self._last[token_ids[place]] = place

    def before_last(self) -> Iterator[int]:
        """Yields the earlier places of the last token, the most recent first."""
        place = self._before[-1] if self._before else -1
        while place >= 0:
            yield place
            place = self._before[place]


def _matching(token_ids: Sequence[int], place: int, most: int) -> int:
    """Returns how many tokens up to `place` equal the tokens at the end, at most `most`."""
    length = 0
    while length < most and length <= place and token_ids[place - length] == token_ids[-1 - length]:
        length += 1
    return length


def _draw(logits: mx.array, drafts: Sequence[Drawn]) -> None:
    """Extend each draft by a token, drawn from its row of logits [n, V]."""
    places = [each.request.sequence.num_tokens + len(each.tokens) for each in drafts]
    drafters = [each.request.drafter for each in drafts]
    if all(isinstance(each, Drafter) and each.shares_key for each in drafters):
        parts = [(each.sampler, place, 1) for each, place in zip(drafters, places, strict=True)]
        for each, token in zip(drafts, cast(list[int], sample_rows(logits, parts).tolist()), strict=True):
            each.tokens.append(token)
        return
    for i, (each, place) in enumerate(zip(drafts, places, strict=True)):
        token, probs = each.request.drafter.draft(logits[i : i + 1], place)
        each.tokens.append(token)
        each.probs += [] if probs is None else [probs]


def _checked(num_tokens: int) -> int:
    if num_tokens < 1:
        raise UserError(f"num_tokens must be 1 or more, not {num_tokens}")
    return num_tokens
