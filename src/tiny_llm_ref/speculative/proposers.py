"""Cheap drafts of the next tokens: looked up in the text so far, or from a small model."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Draft, DraftRequest, PagedModel, Proposer, UserError

from ..generate.sampler import sample_rows
from .draft_blocks import DraftBlocks, Drawn

# Checkpoints of one family pad their vocabularies differently. A difference below this is padding.
_MAX_PADDING = 1024
# A frequent token of a long text has thousands of places, and each draft would look at all of them.
_MAX_PLACES = 256


class NgramProposer(Proposer):
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
        overlap with the end. Of the earlier places of the last token only the 256 most recent ones count.
        The draft is empty if no n-gram of `min_ngram` tokens or more occurs earlier, and has one token if
        the n-gram has one token. With a `request_id` an index of the text is kept: `token_ids` must continue
        the tokens of the request's previous call, and a call takes time only for the new tokens and for
        those places.
        """
        index = _Occurrences() if request_id is None else self._indexes.setdefault(request_id, _Occurrences())
        index.extend(token_ids)
        best, after = 0, 0
        for place in islice(index.before_last(), _MAX_PLACES):
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


class DraftModelProposer(DraftBlocks):
    """Drafts with a small model, whose keys and values are in blocks of the same numbers as the model's."""

    def __init__(self, model: PagedModel, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`. `vocab_size` is the verifying model's (None = the same).

        Vocabularies may differ in padding: logits are cut, or padded with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and if the sizes differ by 1,024 or more. Sets vocab_size and
        num_tokens.
        """
        own = model.config.vocab_size
        self.vocab_size = own if vocab_size is None else vocab_size
        if abs(own - self.vocab_size) >= _MAX_PADDING:
            raise UserError(
                f"the draft model has {own} tokens and the model {vocab_size}: "
                "choose two with the same tokenizer"
            )
        super().__init__(model)
        self.num_tokens = _checked(num_tokens)

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        """As `Proposer`: each token is drawn by the request's drafter from the draft model's logits.

        All requests share a forward pass for each position, and the first pass computes what is not stored
        too. A draft ends at the draft model's max_position_embeddings, and with the sequence's blocks. For a
        token outside its vocabulary the draft model gets its last one. `probs` has the distributions that the
        drafters return.
        From task 4.4.5 on: a hybrid draft model has the states of the known tokens afterwards.
        """
        drafts = [Drawn(each) for each in asked]
        going = [each for each in drafts if self.room(each) > 0]
        while going:
            logits = self.compute([self.next_rows(each) for each in going], is_drawn=True)
            _draw(self._fitted(logits), going)
            going = [each for each in going if len(each.tokens) < self.room(each)]
        for each in drafts:
            if each.tokens:
                self.drafted(each)
        return [Draft(tuple(each.tokens), mx.stack(each.probs) if each.probs else None) for each in drafts]

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
    if all(each.shares_key for each in drafters):
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
