"""A compiled form as a logits processor of one request."""

from collections.abc import Collection, Sequence

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher


class GrammarProcessor:
    """Bars every token that does not continue a form; at its end only an end of sequence is left.

    When the answer has left the form, or the form becomes too costly to follow, only an end of sequence is
    left as well: so the answer ends, and `error` says why.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: Collection[int]) -> None:
        """`matcher` is at the start of the form. Sets error = None."""
        self.error: str | None = None
        self._start = matcher  # never moved
        self._matcher: LLMatcher | None = None  # behind the tokens of _consumed
        self._consumed: list[int] = []
        self._eos = sorted(eos_token_ids)

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """See `LogitsProcessor`."""
        num_tokens = logits.shape[-1]
        try:
            allowed = self._allowed(list(answer), num_tokens)
        except Exception as error:  # must not end the step, which serves others
            allowed = self._failed(str(error), num_tokens)
        return mx.where(mx.array(allowed), logits, mx.array(-mx.inf, logits.dtype))

    def _allowed(self, answer: list[int], num_tokens: int) -> np.ndarray:
        """Which of `num_tokens` tokens may follow `answer` [num_tokens] bool."""
        if not self._follow(answer, num_tokens):
            return self._only_eos(num_tokens)
        assert self._matcher is not None
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return self._failed(self._matcher.get_error(), num_tokens)
        allowed = np.zeros(num_tokens, bool)
        bits = np.unpackbits(mask, count=min(num_tokens, 8 * len(mask)), bitorder="little")
        allowed[: len(bits)] = bits
        return allowed if allowed.any() else self._failed("no token continues the form", num_tokens)

    def _follow(self, answer: list[int], num_tokens: int) -> bool:
        """Move the matcher behind `answer`; False when that does not follow the form."""
        if self._matcher is None:
            self._matcher, self._consumed = self._start.deep_copy(), []
        known = _num_common(self._consumed, answer)
        # What was a draft the last time may have been rejected since.
        if known < len(self._consumed) and not self._matcher.rollback(len(self._consumed) - known):
            self._matcher, known = self._start.deep_copy(), 0
        new = answer[known:]
        is_inside = all(0 <= token < num_tokens for token in new)
        num_followed = self._matcher.try_consume_tokens(new) if is_inside else 0
        self._consumed = answer[: known + num_followed]
        if self._matcher.is_error():
            self._failed(self._matcher.get_error(), 0)
        return num_followed == len(new)

    def _failed(self, reason: str, num_tokens: int) -> np.ndarray:
        # A matcher never leaves its error, which a rejected draft may have caused: the next call makes one.
        self.error, self._matcher = reason.split("\n")[0], None
        return self._only_eos(num_tokens)

    def _only_eos(self, num_tokens: int) -> np.ndarray:
        allowed = np.zeros(num_tokens, bool)
        allowed[[token for token in self._eos if token < num_tokens]] = True
        return allowed


def _num_common(one: list[int], other: list[int]) -> int:
    """How many tokens two texts begin with in common; quick where one continues the other."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(i for i in range(length) if one[i] != other[i])
