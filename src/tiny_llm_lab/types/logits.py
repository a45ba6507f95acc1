"""What changes the logits of one request before a token is drawn from them."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx


class LogitsProcessor(Protocol):
    """Penalties, bans, a grammar: anything that depends on the text so far."""

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """logits [V] of the token that follows `prompt` and `answer` -> logits [V], lazily.

        Called for tokens in any order: a rejected draft token is in `answer` once and not the next time.
        Must not raise, as the step it is called in serves other requests too.
        """
        ...
