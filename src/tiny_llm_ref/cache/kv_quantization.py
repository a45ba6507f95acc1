"""Keys and values as 8-bit numbers, with one scale for each token and head."""

import mlx.core as mx

_LARGEST = 127  # -128 has no opposite


def quantize_rows(x: mx.array) -> tuple[mx.array, mx.array]:
    """x [..., D] -> numbers [..., D] int8 in -127 to 127, and scales [...] float32, one for each row.

    A row's scale is max |x| / 127, in float32 whatever the dtype of x. A number is x / scale, rounded to the
    nearest integer (half to even), so number * scale is off by at most scale / 2. A row of zeros has scale 0
    and zeros. A row that is not finite has a scale that is not finite.
    """
    x = x.astype(mx.float32)
    scales = mx.max(mx.abs(x), axis=-1, keepdims=True) / _LARGEST
    # Never divide by a scale of 0. A subnormal row's scale is so coarse that a number may exceed 127.
    numbers = mx.round(x / mx.where(scales > 0, scales, mx.ones((), mx.float32)))
    return mx.clip(numbers, -_LARGEST, _LARGEST).astype(mx.int8), scales[..., 0]


def dequantize_rows(numbers: mx.array, scales: mx.array, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Returns numbers [..., D] int8 times their rows' scales [...], in float32, as [..., D] of `dtype`."""
    return (numbers.astype(mx.float32) * scales[..., None]).astype(dtype)
