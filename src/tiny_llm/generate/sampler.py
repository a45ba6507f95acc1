"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Callable

import mlx.core as mx

Sampler = Callable[[mx.array], mx.array]


def make_sampler(
    temp: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, seed: int = 0
) -> Sampler:
    """Return sample(logits [..., V]) -> tokens [...] uint32.

    `temp` 0 is greedy (argmax). Otherwise one token per row is drawn from softmax(logits / temp) after
    top-k, then top-p, then min-p have removed tokens. Two samplers made with the same arguments draw
    the same tokens from the same logits, call by call, whatever else the process draws.
    """
    raise NotImplementedError("task 1.7.2")


def truncated_logits(
    logits: mx.array, temp: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> mx.array:
    """What a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p; each sees what those before it have left. The softmax of a
    row is the distribution. Raises ValueError unless `temp` is positive.
    """
    raise NotImplementedError("task 1.7.2")


def apply_top_k(scores: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` highest scores [..., V] of each row, set the others to -inf; 0 keeps all.

    Scores that tie with the k-th highest are kept as well.
    """
    raise NotImplementedError("task 1.7.1")


def apply_top_p(scores: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; others -inf.

    Nucleus sampling (arXiv 1904.09751, section 3.1): the token that crosses `top_p` is kept, so at
    least one always is. `scores` [..., V] are logits; 1 keeps all.
    """
    raise NotImplementedError("task 1.7.1")


def apply_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least `min_p` times as likely as the likeliest one; others -inf; 0 keeps all.

    `scores` [..., V] are logits (arXiv 2407.01082).
    """
    raise NotImplementedError("task 1.7.1")
