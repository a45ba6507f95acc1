"""Which draft tokens are accepted, so that the answer keeps its distribution, and its seed."""

from collections.abc import Sequence

import mlx.core as mx

from ..generate.sampler import Sampler


class Drafter:
    """Draws draft tokens from the logits of a draft model, for the request of one sampler."""

    def __init__(self, sampler: Sampler, coupled: bool = True) -> None:
        """`coupled` says with which key a draft is drawn: the sampler's own for the position, or another."""
        raise NotImplementedError("task 3.9.2")

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """A draft token for `position` from the logits [1, V] of a draft model, cut as the model's are.

        Coupled, or greedy: what the sampler draws from these logits, and None. Otherwise drawn with a key
        that nothing else uses, and the distribution [V] float32 that it was drawn from.
        """
        raise NotImplementedError("task 3.9.2")


def accept(logits: mx.array, draft: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """Verify K draft tokens against logits [K + 1, V]; return the 1 to K + 1 tokens that are certain now.

    Row i predicts `position` + i, for which draft[i] was drafted; the last row follows the last draft token.
    Each token is the one that `sampler` draws there from its row, and they end with the first that differs
    from its draft. So drafts change how many tokens a step brings, never which; a draft token d is accepted
    with probability p(d). Raises ValueError unless there is one row more than draft tokens.
    """
    raise NotImplementedError("task 3.9.2")


def accepted_tokens(drawn: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The tokens of `drawn` up to and including the first that differs from its token in `draft`.

    One token more is drawn than was drafted: when all draft tokens are accepted, all of `drawn`.
    """
    raise NotImplementedError("task 3.9.2")


def accept_with_draft_probs(
    logits: mx.array, draft: Sequence[int], draft_probs: mx.array, sampler: Sampler, position: int
) -> list[int]:
    """As `accept`, for tokens that were drafted from draft_probs [K, V] (Leviathan et al., arXiv 2211.17192).

    With p the distribution of the sampler and q that of the draft: a draft token d is accepted with
    probability min(1, p(d) / q(d)); the first that is rejected is replaced by a draw from max(p - q, 0),
    normalised, and ends the step; when all are accepted, the last row brings one more token. Every token
    has distribution p, and more drafts are accepted than with `accept`; which token comes depends on the
    draft. Greedy sampling needs no q. Raises ValueError unless draft_probs has a row per draft token and V
    columns.
    """
    raise NotImplementedError("task 3.9.2")
