"""What a step may compute ahead of the tokens that are certain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


@dataclass(frozen=True)
class Draft:
    """Draft tokens for the K positions that come next; `probs` [K, V] float32 is what each was drawn from.

    None stands for tokens without a distribution: looked up, the likeliest, or drawn with a shared key.
    """

    token_ids: tuple[int, ...] = ()
    probs: mx.array | None = None

    def cut(self, num_tokens: int) -> "Draft":
        """The first `num_tokens` draft tokens, all when there are fewer."""
        if num_tokens >= len(self.token_ids):
            return self
        kept = max(0, num_tokens)
        return Draft(self.token_ids[:kept], None if self.probs is None else self.probs[:kept])

    def within(self, vocab_size: int) -> "Draft":
        """The draft tokens before the first that is outside a vocabulary of `vocab_size` tokens."""
        outside = (i for i, token in enumerate(self.token_ids) if not 0 <= token < vocab_size)
        return self.cut(next(outside, len(self.token_ids)))


class DraftSampler(Protocol):
    """Draws the tokens of a draft model."""

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """logits [1, V] of the draft model -> the token for `position`, and its distribution [V] or None."""
        ...


class Proposer(Protocol):
    """Drafts how token sequences go on."""

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Draft tokens for what follows `token_ids`; an empty draft is a good answer too."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        ...


class DraftGate(Protocol):
    """Chooses the drafts that are verified."""

    def begin_step(self, num_requests: int) -> None:
        """Begin to choose the drafts of a step, in which `num_requests` decode."""
        ...

    def wants(self, request_id: str, num_draft_tokens: int) -> bool:
        """Whether a draft of a request is to be verified in the present step."""
        ...

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Learn how many tokens of a draft were accepted."""
        ...

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step of decodes and drafts took, `num_rows` rows in all."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request; one that is not known is fine."""
        ...
