"""A layer's keys and values in 8 bits, for a prompt that is paused."""

import mlx.core as mx

from tiny_llm_lab.types import RequestKvCache

_LARGEST = 127  # -128 has no opposite
_TOKENS, _DIMS = 2, 3  # axes of [1, G, S, D]


class PackedKv:
    """What one layer's cache stored, as int8 numbers and float32 scales.

    No token of a paused prompt is missing, so a scale may span all of them. Keys have one scale for each head
    and dimension, because a few dimensions of keys are far larger than the others at every token. Values have
    one scale for each head and token. (KIVI, arXiv 2402.02750.)
    """

    def __init__(self, layer: RequestKvCache) -> None:
        """Pack what `layer` stores (keys and values [1, G, S, D]) and free the layer's memory.

        scale is max |x| / 127 of the numbers that share it. Each number is stored as x / scale rounded to the
        nearest integer, and is off by at most scale / 2. Numbers that are all 0 have scale 0 and stay 0.
        Sets nbytes, the size of the packed form, and unpacked_nbytes, the size of the tokens before.
        Raises ValueError if the layer is empty.
        """
        keys, values = layer.fetch()
        self._dtype = keys.dtype
        self._keys, self._values = _packed(keys, _TOKENS), _packed(values, _DIMS)
        mx.eval(*self._keys, *self._values)
        self.unpacked_nbytes: int = keys.nbytes + values.nbytes
        self.nbytes: int = sum(part.nbytes for part in (*self._keys, *self._values))
        layer.release()

    def restore(self, layer: RequestKvCache) -> None:
        """Append the keys and values, in their original dtype, to the empty `layer`; materialise it."""
        parts = [
            (numbers.astype(mx.float32) * scales).astype(self._dtype)
            for numbers, scales in (self._keys, self._values)
        ]
        layer.update_and_fetch(*parts)
        layer.materialize()


def _packed(x: mx.array, axis: int) -> tuple[mx.array, mx.array]:
    x = x.astype(mx.float32)
    scales = mx.max(mx.abs(x), axis=axis, keepdims=True) / _LARGEST
    # Never divide by a scale of 0.
    numbers = mx.round(x / mx.where(scales > 0, scales, mx.ones_like(scales)))
    return mx.clip(numbers, -_LARGEST, _LARGEST).astype(mx.int8), scales
