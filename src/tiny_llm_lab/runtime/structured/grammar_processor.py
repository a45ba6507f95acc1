"""A compiled form as a logits processor of one request."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher

from tiny_llm_lab.types import RowChanges, num_common

_LOG: Final = logging.getLogger("tiny_llm.engine")


def only(tokens: Iterable[int], vocab_size: int) -> np.ndarray:
    """`RowChanges.allowed` for these tokens of `vocab_size`."""
    allowed = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in tokens:
        if token < vocab_size:
            allowed[token // 32] |= np.uint32(1 << token % 32)
    return allowed


class MaskProcessor(ABC):
    """A `RowProcessor` that bars tokens, and changes nothing else."""

    @abstractmethod
    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """See `RowProcessor`."""

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """See `LogitsProcessor`."""
        num_tokens = logits.shape[-1]
        words = self.changes(answer, num_tokens).allowed
        if words is None:
            return logits
        allowed = np.unpackbits(words.view(np.uint8), count=num_tokens, bitorder="little").astype(bool)
        return mx.where(mx.array(allowed), logits, mx.array(-mx.inf, logits.dtype))


class GrammarProcessor(MaskProcessor):
    """Bars every token that does not continue a form; at its end only an end of sequence is left.

    Behind a text that has left the form only an end of sequence is left as well. So it is from the moment
    on when the form becomes too costly to follow: then the answer ends, and `error` and the log say why.
    """

    def __init__(self, matcher: LLMatcher, eos_token_ids: Collection[int]) -> None:
        """`matcher` is at the start of the form. Sets error = None."""
        self.error: str | None = None
        self._matcher = matcher
        self._consumed: list[int] = []  # the matcher is after these
        self._eos = sorted(eos_token_ids)

    def copy(self) -> "GrammarProcessor":
        """The same form for another request; only before any token."""
        return GrammarProcessor(self._matcher.deep_copy(), self._eos)

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """See `RowProcessor`."""
        allowed = None
        try:
            if self.error is None and self._follow(answer, vocab_size):
                allowed = self._allowed(vocab_size)
            if self.error is None and self._matcher.is_error():
                self._end(self._matcher.get_error())
        except Exception as error:  # must not end the step, which serves others
            self._end(str(error))
        if allowed is None or self.error is not None or not allowed.any():
            allowed = only(self._eos, vocab_size)
        return RowChanges(allowed=allowed)

    def before(self, vocab_size: int) -> RowChanges:
        """What may come before the form: every token but an end of sequence."""
        return RowChanges(allowed=~only(self._eos, vocab_size))

    def _end(self, error: str) -> None:
        self.error = error.split("\n")[0]
        _LOG.warning("an answer ends within its form: %s", self.error)

    def _allowed(self, vocab_size: int) -> np.ndarray:
        """Which of `vocab_size` tokens may follow, as in `RowChanges`."""
        allowed = np.zeros(-(-vocab_size // 32), np.uint32)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(allowed)]
        allowed[: len(mask)] = mask
        allowed[-1] &= np.uint32(0xFFFFFFFF >> -vocab_size % 32)
        return allowed

    def _follow(self, answer: Sequence[int], num_tokens: int) -> bool:
        """Move the matcher to the end of `answer`; False if that does not follow the form."""
        known = num_common(self._consumed, answer)
        # A draft of the last call may have been rejected since.
        if known < len(self._consumed) and not self._matcher.rollback(len(self._consumed) - known):
            return False
        new = list(answer[known:])
        is_inside = all(0 <= token < num_tokens for token in new)
        num_followed = self._matcher.try_consume_tokens(new) if is_inside else 0
        self._consumed[known:] = new[:num_followed]
        return num_followed == len(new)
