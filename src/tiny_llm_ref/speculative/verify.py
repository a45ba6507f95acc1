"""Which draft tokens are accepted, so that drafts change neither the answer's distribution nor its seed."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import gumbel, subkeys, uniform

from ..generate.sampler import Sampler


class Drafter:
    """Draws draft tokens from the logits of a draft model, for the request of one sampler."""

    def __init__(self, sampler: Sampler, coupled: bool = True) -> None:
        """`coupled`: draw a draft with the sampler's own key for the position; if False, with another key."""
        self.sampler = sampler
        self.coupled = coupled

    @property
    def shares_key(self) -> bool:
        """Whether a draft is what the sampler draws: if coupled or greedy."""
        return self.coupled or self.sampler.is_greedy

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """Returns a draft token for `position` from a draft model's logits [1, V], cut like the model's.

        If coupled or greedy, returns what the sampler draws from these logits, and None. Otherwise the token
        is drawn with a key that nothing else uses, and comes with its distribution [V] float32.
        """
        if self.shares_key:
            return cast(int, self.sampler(logits, position).item()), None
        scores = self.sampler.scores(logits[0])
        return _drawn(scores, _keys(self.sampler, position)[2]), mx.softmax(scores, axis=-1)


def accept(logits: mx.array, draft: Sequence[int], sampler: Sampler, position: int) -> list[int]:
    """Verify K draft tokens against logits [K + 1, V]; return the 1 to K + 1 tokens that are now certain.

    Row i predicts `position` + i, for which draft[i] was drafted; the last row follows the last draft token.
    Each returned token is what `sampler` draws there from its row, up to and including the first token that
    differs from its draft. So drafts change how many tokens a step adds, never which tokens. A draft token d
    is accepted with probability p(d). Raises ValueError unless there is one row more than draft tokens.
    """
    _reject_shape(logits, draft)
    return accepted_tokens(cast(list[int], sampler(logits, position).tolist()), draft)


def accepted_tokens(drawn: Sequence[int], draft: Sequence[int]) -> list[int]:
    """Returns the tokens of `drawn` up to and including the first that differs from its token in `draft`.

    One token more is drawn than was drafted. If all draft tokens are accepted, returns all of `drawn`.
    """
    num_accepted = 0
    while num_accepted < len(draft) and drawn[num_accepted] == draft[num_accepted]:
        num_accepted += 1
    return list(drawn[: num_accepted + 1])


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
    _reject_shape(logits, draft)
    if draft_probs.shape != (len(draft), logits.shape[1]):
        raise ValueError(
            f"draft_probs {draft_probs.shape} for {len(draft)} draft tokens and logits {logits.shape}"
        )
    if sampler.is_greedy:
        return accept(logits, draft, sampler, position)
    for i, token in enumerate(draft):
        p, q = mx.softmax(sampler.scores(logits[i]), axis=-1), draft_probs[i]
        verdict, replacement, _ = _keys(sampler, position + i)
        # u < p / q, without dividing by a q that may be 0.
        if (uniform([verdict])[0, 0] * q[token] < p[token]).item():
            continue
        return [*draft[:i], _drawn_from_residual(p, q, replacement)]
    return [*draft, *cast(list[int], sampler(logits[-1:], position + len(draft)).tolist())]


def _keys(sampler: Sampler, position: int) -> list[int]:
    """Returns three keys for `position`: to accept or reject its draft, to replace it, and to draw it."""
    return subkeys(sampler.key(position), 3)


def _drawn(scores: mx.array, key: int) -> int:
    """Returns a draw from the softmax of scores [V]."""
    return cast(int, mx.argmax(scores + gumbel([key], len(scores))[0]).item())


def _drawn_from_residual(p: mx.array, q: mx.array, key: int) -> int:
    residual = mx.maximum(p - q, 0)
    # If p equals q, rounding can reject a draft and leave no residual.
    residual = mx.where(mx.sum(residual) > 0, residual, p)
    return _drawn(mx.log(residual), key)


def _reject_shape(logits: mx.array, draft: Sequence[int]) -> None:
    if logits.ndim != 2 or logits.shape[0] != len(draft) + 1:
        raise ValueError(f"logits {logits.shape} for {len(draft)} draft tokens: give [{len(draft) + 1}, V]")
