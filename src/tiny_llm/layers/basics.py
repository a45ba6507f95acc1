"""The small functions that everything else is made of."""

import mlx.core as mx


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """Normalise `x` to probabilities along `axis`; same shape and dtype as `x`.

    Exact for rows of any size (no overflow), accumulated in float32 even for 16-bit inputs.
    A row of -inf alone has no softmax: the result is unspecified.
    """
    raise NotImplementedError("task 1.1.1")


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Multiply x [..., I] by the transpose of w [O, I] and add bias [O] -> [..., O]."""
    raise NotImplementedError("task 1.1.1")


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), elementwise, same shape and dtype (Elfwing et al. 2017, arXiv 1702.03118).

    Evaluated in float32 and rounded once: in float16, exp(12) is already infinite.
    """
    raise NotImplementedError("task 1.4.2")
