"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Callable

import mlx.core as mx

from tiny_llm_lab.native import kernels

Sampler = Callable[[mx.array], mx.array]

# How many of the highest scores the kernels list: few enough to be found in one walk, and more than a nucleus
# has, unless a distribution is nearly flat.
_LISTED = 1024


def make_sampler(
    temp: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, seed: int = 0
) -> Sampler:
    """Return sample(logits [..., V]) -> tokens [...] uint32.

    `temp` 0 is greedy (argmax). Otherwise one token per row is drawn from softmax(logits / temp) after
    top-k, then top-p, then min-p have removed tokens. Two samplers made with the same arguments draw
    the same tokens from the same logits, call by call, whatever else the process draws.
    """
    if temp == 0:
        return _most_likely
    key = mx.random.key(seed)

    def sample(logits: mx.array) -> mx.array:
        nonlocal key
        key, draw = mx.random.split(key)
        scores = truncated_logits(logits, temp, top_p, top_k, min_p)
        return mx.random.categorical(scores, key=draw)

    return sample


def truncated_logits(
    logits: mx.array, temp: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> mx.array:
    """What a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p; each sees what those before it have left. The softmax of a
    row is the distribution. Raises ValueError unless `temp` is positive.
    """
    if temp <= 0:
        raise ValueError(f"temperature {temp} has no distribution")
    scores = logits.astype(mx.float32) / temp
    return apply_min_p(apply_top_p(apply_top_k(scores, top_k), top_p), min_p)


def apply_top_k(scores: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` highest scores [..., V] of each row, set the others to -inf; 0 keeps all.

    Scores that tie with the k-th highest are kept as well.
    """
    vocab = scores.shape[-1]
    if not 0 < top_k < vocab:
        return scores
    native = kernels(__package__)
    if native and top_k <= _LISTED:
        return _at_least(native.top_k(scores, top_k)[..., -1:], scores)
    return _at_least(mx.min(mx.topk(scores, top_k, axis=-1), axis=-1, keepdims=True), scores)


def apply_top_p(scores: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; others -inf.

    Nucleus sampling (arXiv 1904.09751, section 3.1): the token that crosses `top_p` is kept, so at
    least one always is. `scores` [..., V] are logits; 1 keeps all.
    """
    if top_p >= 1:
        return scores
    if (threshold := _nucleus_end(scores, top_p)) is not None:
        return _at_least(threshold, scores)
    order = mx.argsort(-scores, axis=-1)
    probs = mx.softmax(mx.take_along_axis(scores, order, axis=-1), axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    kept = mx.put_along_axis(mx.zeros_like(before), order, (before < top_p).astype(before.dtype), axis=-1)
    return mx.where(kept > 0, scores, -mx.inf)


def apply_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least `min_p` times as likely as the likeliest one; others -inf; 0 keeps all.

    `scores` [..., V] are logits (arXiv 2407.01082).
    """
    if min_p <= 0:
        return scores
    probs = mx.softmax(scores, axis=-1)
    floor = min_p * mx.max(probs, axis=-1, keepdims=True)
    return mx.where(probs >= floor, scores, -mx.inf)


def _at_least(threshold: mx.array, scores: mx.array) -> mx.array:
    return mx.where(scores >= threshold, scores, -mx.inf)


def _nucleus_end(scores: mx.array, top_p: float) -> mx.array | None:
    """The lowest score [..., 1] of each row's nucleus from its highest scores alone: no sort of all of them.

    None without kernels, or when a nucleus is larger than that or ends within scores that tie, which a
    threshold cannot part.
    """
    native = kernels(__package__)
    if native is None or scores.dtype != mx.float32 or scores.shape[-1] <= _LISTED:
        return None
    highest = native.top_k(scores, _LISTED)
    if mx.all(highest[..., -1] == -mx.inf).item():
        probs = mx.softmax(highest, axis=-1)  # top-k has left nothing besides
    else:
        probs = native.top_k(mx.softmax(scores, axis=-1), _LISTED)
    size = mx.sum(mx.cumsum(probs, axis=-1) - probs < top_p, axis=-1, keepdims=True)
    last = mx.take_along_axis(highest, size - 1, axis=-1)
    # Beyond the list stands its own last entry, which is not below itself.
    after = mx.take_along_axis(highest, mx.minimum(size, _LISTED - 1), axis=-1)
    return last if mx.all(after < last).item() else None


def _most_likely(logits: mx.array) -> mx.array:
    native = kernels(__package__)
    return native.argmax(logits) if native else mx.argmax(logits, axis=-1)
