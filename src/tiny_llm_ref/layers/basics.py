"""The small functions that the layers are built from."""

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights, Weight

from .quantize import quantized_linear


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """Returns `x` normalised to probabilities along `axis`, in the shape and dtype of `x`.

    Exact for numbers of any size (no overflow), and accumulated in float32 even for 16-bit inputs. A row of
    nothing but -inf has no softmax; its result is unspecified.
    """
    wide = x.astype(mx.float32)
    exps = mx.exp(wide - mx.max(wide, axis=axis, keepdims=True))
    return (exps / mx.sum(exps, axis=axis, keepdims=True)).astype(x.dtype)


def linear(x: mx.array, w: Weight, bias: mx.array | None = None) -> mx.array:
    """Returns x [..., I] times the transpose of w [O, I], plus bias [O] -> [..., O].

    From task 2.3.1 on: `w` may also be `QuantizedWeights` of the same logical shape.
    """
    if isinstance(w, QuantizedWeights):
        return quantized_linear(x, w, bias)
    out = x @ w.T
    return out if bias is None else out + bias


def silu(x: mx.array) -> mx.array:
    """Returns x * sigmoid(x), elementwise, in x's shape and dtype (Elfwing et al. 2017, arXiv 1702.03118).

    Computed in float32 and rounded once, because in float16 exp(12) is already infinite.
    """
    wide = x.astype(mx.float32)
    return (wide * mx.sigmoid(wide)).astype(x.dtype)
