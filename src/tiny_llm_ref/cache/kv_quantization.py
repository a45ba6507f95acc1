"""Keys and values as numbers of 8 bits, each token and head with a scale of its own."""

import mlx.core as mx

_LARGEST = 127  # -128 has no opposite


def quantize_rows(x: mx.array) -> tuple[mx.array, mx.array]:
    """x [..., D] -> numbers [..., D] int8, in -127 to 127, and scales [...] float32, one for every row.

    scale = max |x| / 127 of the row, in float32 whatever x is; a number is x / scale, rounded to the nearest
    integer (halfway: to the even one), so number * scale is off by at most scale / 2. A row of zeros has
    scale 0 and zeros. A row that is not finite has a scale that is not.
    """
    x = x.astype(mx.float32)
    scales = mx.max(mx.abs(x), axis=-1, keepdims=True) / _LARGEST
    # Nothing is divided by the scale of zeros; that of a subnormal row is so coarse that 127 may be passed.
    numbers = mx.round(x / mx.where(scales > 0, scales, mx.ones((), mx.float32)))
    return mx.clip(numbers, -_LARGEST, _LARGEST).astype(mx.int8), scales[..., 0]


def dequantize_rows(numbers: mx.array, scales: mx.array, dtype: mx.Dtype = mx.float32) -> mx.array:
    """numbers [..., D] int8 times the scales [...] of their rows, in float32 -> [..., D] of `dtype`."""
    return (numbers.astype(mx.float32) * scales[..., None]).astype(dtype)
