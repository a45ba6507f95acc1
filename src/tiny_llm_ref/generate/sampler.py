"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from tiny_llm_lab.types import UNCHANGED, DrawRow, KernelOps, RowChanges, SamplingParams, gumbel, mixed


class Sampler:
    """Picks the tokens of one request. A draw depends only on the logits, the seed and the position.

    So it does not matter in which step a token is drawn, with which other tokens, or whether it was drafted.
    """

    def __init__(self, sampling: SamplingParams = SamplingParams(), ops: KernelOps | None = None) -> None:
        """Sets sampling. Of its fields only temperature, top_k, top_p, min_p and seed are used.

        From task 2.5.6 on: `ops` are the model's operators, which draw from all rows of a step at once.
        """
        self.sampling, self.ops = sampling, ops
        self._first_key = mixed(sampling.seed)

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, so that the likeliest token is always picked."""
        return self.sampling.temperature == 0

    def __call__(self, logits: mx.array, position: int) -> mx.array:
        """Draw from logits [n, V] -> tokens [n] uint32, lazily; row i is for the token at `position` + i.

        A token's position is the number of tokens before it, prompt included. If greedy, returns the
        likeliest tokens. Otherwise row i is drawn from the softmax of `scores(logits)[i]`: the token is the
        place of its largest sum with the row that `gumbel` returns for `key(position + i)`.
        """
        if self.ops is not None:
            return sample_rows(logits, [(self, position, len(logits))])
        return self.drawn(logits, [self.key(position + i) for i in range(len(logits))])

    def drawn(self, logits: mx.array, keys: Sequence[int]) -> mx.array:
        """Returns the tokens [n] of logits [n, V] as a call does, with the key of each row."""
        if self.is_greedy:
            return most_likely(logits)
        return mx.argmax(self.scores(logits) + gumbel(keys, logits.shape[-1]), axis=-1)

    def scores(self, logits: mx.array) -> mx.array:
        """Returns `truncated_logits` [..., V] of logits [..., V] with this request's settings.

        Raises ValueError if greedy.
        """
        s = self.sampling
        return truncated_logits(logits, s.temperature, s.top_p, s.top_k, s.min_p)

    def key(self, position: int) -> int:
        """Returns the key of a position, 0 to 2**64 - 1. In practice no two seeds or positions share one."""
        return (self._first_key + position) % 2**64


def sample_rows(
    logits: mx.array, parts: Sequence[tuple[Sampler, int, int]], changes: Sequence[RowChanges] = ()
) -> mx.array:
    """Draw for several requests from their rows of logits [n, V] -> tokens [n] uint32, lazily.

    `parts` has (sampler, position of its first row, number of rows), in the order of the rows. If all
    requests are greedy they share one pass over the logits.
    From task 2.5.6 on: with operators all rows are one `draw`, or one `argmax` if all are greedy.
    From task 3.7.3 on: `changes` has what operators change in each row before they draw, also if all are
    greedy; () = nothing.
    """
    if not parts:
        return mx.zeros((0,), mx.uint32)
    ops = parts[0][0].ops
    if all(sampler.is_greedy for sampler, _, _ in parts) and all(each is UNCHANGED for each in changes):
        return most_likely(logits, ops)
    if ops is not None:
        draws = [(s.sampling, s.key(position + i)) for s, position, count in parts for i in range(count)]
        changed = changes or [UNCHANGED] * len(draws)
        return ops.draw(logits, [DrawRow(*draw, each) for draw, each in zip(draws, changed, strict=True)])
    ends = list(accumulate(count for _, _, count in parts))
    rows = [logits[end - part[2] : end] for part, end in zip(parts, ends, strict=True)]
    return mx.concatenate([part[0](row, part[1]) for part, row in zip(parts, rows, strict=True)])


def most_likely(logits: mx.array, ops: KernelOps | None = None) -> mx.array:
    """Returns the likeliest token of each row: logits [n, V] -> [n] uint32. For equal logits, the lowest."""
    return mx.argmax(logits, axis=-1) if ops is None else ops.argmax(logits)


def truncated_logits(
    logits: mx.array, temp: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> mx.array:
    """Returns what a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p. Each sees what the previous steps have left, and keeps every
    token whose score reaches a threshold, equal scores included. The softmax of a row is the distribution.
    Raises ValueError unless `temp` is positive.
    """
    if temp <= 0:
        raise ValueError(f"temp must be above 0 for a distribution, not {temp}")
    scores = logits.astype(mx.float32) / temp
    return apply_min_p(apply_top_p(apply_top_k(scores, top_k), top_p), min_p)


def apply_top_k(scores: mx.array, top_k: int) -> mx.array:
    """Returns `scores` [..., V] with all that don't reach the `top_k`-th highest set to -inf; 0 keeps all."""
    if not 0 < top_k < scores.shape[-1]:
        return scores
    return _at_least(mx.min(mx.topk(scores, top_k, axis=-1), axis=-1, keepdims=True), scores)


def apply_top_p(scores: mx.array, top_p: float) -> mx.array:
    """Returns `scores` [..., V], which are logits, with all outside the nucleus set to -inf; 1 keeps all.

    The nucleus (arXiv 1904.09751, section 3.1) has every token whose score reaches a threshold, the highest
    at which the kept probabilities add up to `top_p` or more. The token that crosses `top_p` is kept, so
    there is always at least one.
    """
    if top_p >= 1:
        return scores
    falling = -mx.sort(-scores, axis=-1)
    probs = mx.softmax(falling, axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    size = mx.sum(before < top_p, axis=-1, keepdims=True)
    return _at_least(mx.take_along_axis(falling, size - 1, axis=-1), scores)


def apply_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Returns `scores` with tokens less than `min_p` times as likely as the likeliest set to -inf.

    `scores` [..., V] are logits; 0 keeps all (arXiv 2407.01082).
    """
    if min_p <= 0:
        return scores
    probs = mx.softmax(scores, axis=-1)
    floor = min_p * mx.max(probs, axis=-1, keepdims=True)
    return mx.where(probs >= floor, scores, -mx.inf)


def _at_least(threshold: mx.array, scores: mx.array) -> mx.array:
    return mx.where(scores >= threshold, scores, -mx.inf)
