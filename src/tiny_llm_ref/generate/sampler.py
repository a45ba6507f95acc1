"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, SamplingParams

# How many of the highest scores the kernels list. Few enough to find in one pass, and more than a nucleus has
# unless the distribution is nearly flat.
_LISTED = 1024


class Sampler:
    """Picks the tokens of one request. A draw depends only on the logits, the seed and the position.

    So it does not matter in which step a token is drawn, with which other tokens, or whether it was drafted.
    """

    def __init__(self, sampling: SamplingParams = SamplingParams(), ops: KernelOps | None = None) -> None:
        """Sets sampling. Of its fields only temperature, top_k, top_p, min_p and seed are used.

        From task 2.5.6 on: `ops` are the model's operators, which find the likeliest tokens faster.
        """
        self.sampling, self.ops = sampling, ops
        self._first_key = _mixed(sampling.seed)

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, so that the likeliest token is always picked."""
        return self.sampling.temperature == 0

    def __call__(self, logits: mx.array, position: int) -> mx.array:
        """Draw from logits [n, V] -> tokens [n] uint32, lazily; row i is for the token at `position` + i.

        A token's position is the number of tokens before it, prompt included. If greedy, returns the
        likeliest tokens. Otherwise row i is drawn from the softmax of `scores(logits)[i]`, with the key
        `key(position + i)`.
        """
        if self.is_greedy:
            return most_likely(logits, self.ops)
        scores = self.scores(logits)
        # Row by row, because a draw must not depend on how many rows are drawn with it.
        rows = range(logits.shape[0])
        draws = [mx.random.categorical(scores[i : i + 1], key=self.key(position + i)) for i in rows]
        return mx.concatenate(draws) if draws else mx.zeros((0,), mx.uint32)

    def scores(self, logits: mx.array) -> mx.array:
        """Returns `truncated_logits` [..., V] of logits [..., V] with this request's settings.

        Raises ValueError if greedy.
        """
        s = self.sampling
        return truncated_logits(logits, s.temperature, s.top_p, s.top_k, s.min_p, self.ops)

    def key(self, position: int) -> mx.array:
        """Returns the random key of a position. No two positions and, in practice, no two seeds share one."""
        return mx.random.key((self._first_key + position) % 2**64)


def sample_rows(logits: mx.array, parts: Sequence[tuple[Sampler, int, int]]) -> mx.array:
    """Draw for several requests from their rows of logits [n, V] -> tokens [n] uint32, lazily.

    `parts` has (sampler, position of its first row, number of rows), in the order of the rows. All greedy
    requests share one pass over the logits.
    """
    if not parts:
        return mx.zeros((0,), mx.uint32)
    likeliest = most_likely(logits, parts[0][0].ops)
    if all(sampler.is_greedy for sampler, _, _ in parts):
        return likeliest
    draws, first = [], 0
    for sampler, position, count in parts:
        rows = slice(first, first + count)
        draws.append(likeliest[rows] if sampler.is_greedy else sampler(logits[rows], position))
        first += count
    return mx.concatenate(draws)


def most_likely(logits: mx.array, ops: KernelOps | None = None) -> mx.array:
    """Returns the likeliest token of each row: logits [n, V] -> [n] uint32. For equal logits, the lowest."""
    return mx.argmax(logits, axis=-1) if ops is None else ops.argmax(logits)


def truncated_logits(
    logits: mx.array,
    temp: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    ops: KernelOps | None = None,
) -> mx.array:
    """Returns what a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p. Each sees what the previous steps have left. The softmax of a
    row is the distribution. Raises ValueError unless `temp` is positive.
    """
    if temp <= 0:
        raise ValueError(f"temp must be above 0 for a distribution, not {temp}")
    scores = logits.astype(mx.float32) / temp
    return apply_min_p(apply_top_p(apply_top_k(scores, top_k, ops), top_p, ops), min_p)


def apply_top_k(scores: mx.array, top_k: int, ops: KernelOps | None = None) -> mx.array:
    """Returns `scores` [..., V] with all but the `top_k` highest of each row set to -inf; 0 keeps all.

    Scores equal to the k-th highest are also kept.
    """
    vocab = scores.shape[-1]
    if not 0 < top_k < vocab:
        return scores
    if ops is not None and ops.lists_top_k and top_k <= _LISTED:
        return _at_least(ops.top_k(scores, top_k)[..., -1:], scores)
    return _at_least(mx.min(mx.topk(scores, top_k, axis=-1), axis=-1, keepdims=True), scores)


def apply_top_p(scores: mx.array, top_p: float, ops: KernelOps | None = None) -> mx.array:
    """Returns `scores` with all but the likeliest tokens whose probabilities reach `top_p` set to -inf.

    This is nucleus sampling (arXiv 1904.09751, section 3.1): it keeps the smallest such set. The token that
    crosses `top_p` is kept, so there is always at least one. `scores` [..., V] are logits; 1 keeps all.
    """
    if top_p >= 1:
        return scores
    if (threshold := _nucleus_end(scores, top_p, ops)) is not None:
        return _at_least(threshold, scores)
    order = mx.argsort(-scores, axis=-1)
    probs = mx.softmax(mx.take_along_axis(scores, order, axis=-1), axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    kept = mx.put_along_axis(mx.zeros_like(before), order, (before < top_p).astype(before.dtype), axis=-1)
    return mx.where(kept > 0, scores, -mx.inf)


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


def _nucleus_end(scores: mx.array, top_p: float, ops: KernelOps | None) -> mx.array | None:
    """Returns the lowest score [..., 1] of each row's nucleus, from its highest scores only, without a sort.

    Returns None unless `ops` list the highest scores, or if a nucleus is larger than the list or ends within
    equal scores, which a threshold can't separate.
    """
    if ops is None or not ops.lists_top_k or scores.dtype != mx.float32 or scores.shape[-1] <= _LISTED:
        return None
    highest = ops.top_k(scores, _LISTED)
    if mx.all(highest[..., -1] == -mx.inf).item():
        probs = mx.softmax(highest, axis=-1)  # top-k has left nothing else
    else:
        probs = ops.top_k(mx.softmax(scores, axis=-1), _LISTED)
    size = mx.sum(mx.cumsum(probs, axis=-1) - probs < top_p, axis=-1, keepdims=True)
    last = mx.take_along_axis(highest, size - 1, axis=-1)
    # After the end of the list, compare the last entry with itself, which is never below itself.
    after = mx.take_along_axis(highest, mx.minimum(size, _LISTED - 1), axis=-1)
    return last if mx.all(after < last).item() else None


def _mixed(seed: int) -> int:
    """Returns a 64-bit integer without visible relation to `seed` (the finaliser of SplitMix64).

    Positions are added to it, and seeds 0 and 1 must not share all keys but one.
    """
    value = (seed + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor % 2**64
    return value ^ value >> 31
