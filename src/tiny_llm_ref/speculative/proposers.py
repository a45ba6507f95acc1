"""Cheap drafts of the next tokens: looked up in the text so far, or from a small model."""

from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Draft, DraftSampler, Model, RequestKvCache, UserError, Wanted

# The most tokens in one pass of a draft model, so that a long prompt does not need a long row of scores.
_CHUNK = 512
# Checkpoints of one family pad their vocabularies differently. A difference below this is padding.
_MAX_PADDING = 1024


class NgramProposer:
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

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Returns up to `num_tokens` tokens that followed an earlier occurrence of the text's last n-gram.

        It uses the longest n-gram that occurs earlier, and its most recent earlier occurrence, which may
        overlap with the end. The draft is empty if no n-gram of `min_ngram` tokens or more occurs earlier,
        and has one token if the n-gram has one token. With a `request_id` an index of the text is kept:
        `token_ids` must continue the tokens of the request's previous call, and a call takes time only for
        the new tokens and for the earlier places of the last token. `sampler` is not used.
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


class DraftModelProposer:
    """Drafts with a small model, and keeps a KV cache for every request."""

    def __init__(self, model: Model, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`. `vocab_size` is the verifying model's (None = the same).

        Vocabularies may differ in padding: logits are cut, or padded with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and if the sizes differ by 1,024 or more.
        """
        own = model.config.vocab_size
        self.vocab_size = own if vocab_size is None else vocab_size
        if abs(own - self.vocab_size) >= _MAX_PADDING:
            raise UserError(
                f"the draft model has {own} tokens and the model {vocab_size}: "
                "choose two with the same tokenizer"
            )
        self.model = model
        self.num_tokens = _checked(num_tokens)
        self._computed: dict[str, _Computed] = {}

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Returns up to `num_tokens` tokens, each drawn by `sampler.draft` from the draft model's logits.

        Without a sampler the tokens are the likeliest. With a `request_id` the cache is kept: only tokens
        that it does not store are computed, and rejected tokens are rewound. The draft ends at the draft
        model's max_position_embeddings, and is empty for a text with a token outside its vocabulary. `probs`
        has the distributions that the sampler returns.
        """
        room = self.model.config.max_position_embeddings - len(token_ids) + 1
        if room < 1 or not token_ids or max(token_ids) >= self.model.config.vocab_size:
            return Draft()
        computed = self._computed.get(request_id or "") or _Computed(self.model)
        if request_id is not None:
            self._computed[request_id] = computed
        drawn_by, logits = sampler or _Likeliest(), computed.catch_up(token_ids)
        draft: list[int] = []
        probs: list[mx.array] = []
        for position in range(len(token_ids), len(token_ids) + min(self.num_tokens, room)):
            if draft:
                if draft[-1] >= self.model.config.vocab_size:
                    break  # only the verifying model has this row
                logits = computed.append(draft[-1:])
            fitted = self._fitted(logits)
            token, row = drawn_by.draft(fitted, position)
            draft.append(token)
            probs += [] if row is None else [row]
        return Draft(tuple(draft), mx.stack(probs) if probs else None)

    def forget(self, request_id: str) -> None:
        """Free a request's cache. The request may be unknown."""
        if computed := self._computed.pop(request_id, None):
            computed.release()

    def _fitted(self, logits: mx.array) -> mx.array:
        """Returns logits [1, V of the draft model] as [1, vocab_size]."""
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


class _Computed:
    """The tokens that a draft model has computed for one request, and their cache."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache: list[RequestKvCache] = model.create_kv_cache()
        self._tokens: list[int] = []

    def catch_up(self, token_ids: Sequence[int]) -> mx.array:
        """Store exactly `token_ids`; return logits [1, V] after the last token, computed again if needed."""
        known = min(len(self._tokens), len(token_ids) - 1)
        while self._tokens[:known] != list(token_ids[:known]):
            known -= 1
        for layer in self._cache:
            layer.rewind(len(self._tokens) - known)
        del self._tokens[known:]
        return self.append(token_ids[known:])

    def append(self, token_ids: Sequence[int]) -> mx.array:
        """Compute more tokens, and return the logits [1, V] after the last token."""
        for start in range(0, len(token_ids), _CHUNK):
            chunk = list(token_ids[start : start + _CHUNK])
            is_last = start + _CHUNK >= len(token_ids)
            tokens = mx.array([chunk])
            logits = self._model(tokens, len(self._tokens), self._cache, wanted=Wanted(last=int(is_last)))
            for layer in self._cache:
                layer.materialize()
            self._tokens += chunk
        return logits[:, -1]

    def release(self) -> None:
        for layer in self._cache:
            layer.release()


def _matching(token_ids: Sequence[int], place: int, most: int) -> int:
    """Returns how many tokens up to `place` equal the tokens at the end, at most `most`."""
    length = 0
    while length < most and length <= place and token_ids[place - length] == token_ids[-1 - length]:
        length += 1
    return length


class _Likeliest:
    def draft(self, logits: mx.array, position: int) -> tuple[int, None]:
        return cast(int, mx.argmax(logits, axis=-1).item()), None


def _checked(num_tokens: int) -> int:
    if num_tokens < 1:
        raise UserError(f"num_tokens must be 1 or more, not {num_tokens}")
    return num_tokens
