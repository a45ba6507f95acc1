"""Which draft tokens are accepted, so that drafts change neither the answer's distribution nor its seed."""

from collections.abc import Sequence

import mlx.core as mx

from ..generate.sampler import Sampler


class Drafter:
    """Draws draft tokens from the logits of a draft model, for the request of one sampler."""

    def __init__(self, sampler: Sampler, coupled: bool = True) -> None:
        """`coupled`: draw a draft with the sampler's own key for the position; if False, with another key."""
        raise NotImplementedError("task 3.9.2")

    @property
    def shares_key(self) -> bool:
        """Whether a draft is what the sampler draws: if coupled or greedy."""
        raise NotImplementedError("task 3.9.2")

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """Returns a draft token for `position` from a draft model's logits [1, V], cut like the model's.

        If coupled or greedy, returns what the sampler draws from these logits, and None. Otherwise the token
        is drawn with a key that nothing else uses, and comes with its distribution [V] float32.
        """
        raise NotImplementedError("task 3.9.2")


def accept(logits: mx.array, draft: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """Verify K draft tokens against logits [K + 1, V]; return the 1 to K + 1 tokens that are now certain.

    Row i predicts `position` + i, for which draft[i] was drafted; the last row follows the last draft token.
    Each returned token is what `sampler` draws there from its row, up to and including the first token that
    differs from its draft. So drafts change how many tokens a step adds, never which tokens. A draft token d
    is accepted with probability p(d). Raises ValueError unless there is one row more than draft tokens.
    """
    raise NotImplementedError("task 3.9.2")


def accepted_tokens(drawn: Sequence[int], draft: Sequence[int]) -> list[int]:
    """Returns the tokens of `drawn` up to and including the first that differs from its token in `draft`.

    One token more is drawn than was drafted. If all draft tokens are accepted, returns all of `drawn`.
    """
    raise NotImplementedError("task 3.9.2")


def accept_with_draft_probs(
    logits: mx.array, draft: Sequence[int], draft_probs: mx.array, sampler: Sampler, position: int
) -> list[int]:
    """Like `accept`, for tokens drafted from draft_probs [K, V] (Leviathan et al., arXiv 2211.17192).

    Let p be the sampler's distribution and q the draft's. A draft token d is accepted with probability
    min(1, p(d) / q(d)). The first rejected token is replaced by a draw from max(p - q, 0), normalised, and
    ends the step. If all are accepted, the last row adds one more token. Every token has distribution p, and
    more drafts are accepted than with `accept`, but which token you get depends on the draft. Greedy sampling
    needs no q. Raises ValueError unless draft_probs has a row per draft token and V columns.
    """
    raise NotImplementedError("task 3.9.2")
