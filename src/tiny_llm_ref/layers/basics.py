"""The small functions that everything else is made of."""

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights, Weight

from .quantize import quantized_linear


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """Normalise `x` to probabilities along `axis`; same shape and dtype as `x`.

    Exact for rows of any size (no overflow), accumulated in float32 even for 16-bit inputs.
    A row of -inf alone has no softmax: the result is unspecified.
    """
    wide = x.astype(mx.float32)
    exps = mx.exp(wide - mx.max(wide, axis=axis, keepdims=True))
    return (exps / mx.sum(exps, axis=axis, keepdims=True)).astype(x.dtype)


def linear(x: mx.array, w: Weight, bias: mx.array | None = None) -> mx.array:
    """Multiply x [..., I] by the transpose of w [O, I] and add bias [O] -> [..., O].

    From task 2.3.1 on: `w` may also be `QuantizedWeights` of the same logical shape.
    """
    if isinstance(w, QuantizedWeights):
        return quantized_linear(x, w, bias)
    out = x @ w.T
    return out if bias is None else out + bias


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), elementwise, same shape and dtype (Elfwing et al. 2017, arXiv 1702.03118).

    Evaluated in float32 and rounded once: in float16, exp(12) is already infinite.
    """
    wide = x.astype(mx.float32)
    return (wide * mx.sigmoid(wide)).astype(x.dtype)
