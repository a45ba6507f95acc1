"""Draft tokens, which a step may compute ahead of the certain tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


@dataclass(frozen=True)
class Draft:
    """Draft tokens for the next K positions. `probs` [K, V] float32 has the distribution of each draw.

    None means tokens without a distribution: looked up, the likeliest, or drawn with a shared key.
    """

    token_ids: tuple[int, ...] = ()
    probs: mx.array | None = None

    def cut(self, num_tokens: int) -> "Draft":
        """Returns the first `num_tokens` draft tokens, or all if there are fewer."""
        if num_tokens >= len(self.token_ids):
            return self
        kept = max(0, num_tokens)
        return Draft(self.token_ids[:kept], None if self.probs is None else self.probs[:kept])

    def within(self, vocab_size: int) -> "Draft":
        """Returns the draft tokens before the first token outside a vocabulary of `vocab_size` tokens."""
        outside = (i for i, token in enumerate(self.token_ids) if not 0 <= token < vocab_size)
        return self.cut(next(outside, len(self.token_ids)))


class DraftSampler(Protocol):
    """Draws the tokens of a draft model."""

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """Draft model's logits [1, V] -> the token for `position`, and its distribution [V] or None."""


class Proposer(Protocol):
    """Drafts how token sequences continue."""

    def propose(
        self, token_ids: Sequence[int], request_id: str | None = None, sampler: DraftSampler | None = None
    ) -> Draft:
        """Returns a draft of what follows `token_ids`. It may be empty."""

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""


class DraftGate(Protocol):
    """Chooses how long drafts are."""

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step, also one launched early, in which `num_requests` decode."""

    def length(self, request_id: str, most: int) -> int:
        """Returns how many tokens to draft for a request in the step that began, 0 to `most`.

        Changes nothing, and may be called often or never.
        """

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn how many tokens of a draft were accepted: once for every decode. 0, 0: it had no draft."""

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step of decodes and drafts, `num_rows` in all, took after its drafts were made."""

    def observe_drafting(self, num_passes: int, num_rows: int, seconds: float) -> None:
        """Learn how long the drafts of a step took: `num_passes` passes, `num_rows` rows in total.

        A draft of k tokens has a row in each of k passes, and one that is looked up has one row in one pass.
        """

    def forget(self, request_id: str) -> None:
        """Forget what is known about a request. It may be unknown."""
