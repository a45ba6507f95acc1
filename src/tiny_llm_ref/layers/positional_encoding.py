"""Rotary positional encoding (Su et al. 2021, RoFormer, arXiv 2104.09864)."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import RopeScaling

# The tables grow in multiples of this many positions, and at least double.
_STEP = 256


class RoPE:
    """Rotates pairs of a head's dimensions by angles that grow with the token's position."""

    def __init__(
        self,
        dims: int,
        seq_len: int,
        base: float = 10000,
        traditional: bool = False,
        scaling: RopeScaling | None = None,
    ) -> None:
        """Pair i (from 0) of `dims` dimensions turns by base^(-2i / dims) radians a position (eq. 15).

        You can encode positions 0 to seq_len - 1. `traditional` pairs neighbours: (0, 1), (2, 3), ...
        Otherwise dimension i is paired with i + dims / 2, as Qwen does. With `scaling` the frequencies are
        `scaling.scaled(frequencies, base)`, and all cosines and sines are multiplied by `scaling.magnitude`.
        Sets what operators read: `periods` [dims / 2], 1 / frequency in float32; `magnitude`, the factor
        of the cosines and sines, 1.0 without scaling; and `base`, None with scaling. Raises ValueError for
        odd dims.
        """
        if dims % 2:
            raise ValueError(f"RoPE needs an even number of dimensions, not {dims}")
        self.seq_len = seq_len
        self.traditional = traditional
        frequencies = base ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        self._frequencies = frequencies if scaling is None else scaling.scaled(frequencies, base)
        self.periods = 1 / self._frequencies
        self.base = base if scaling is None else None
        self.magnitude = 1.0 if scaling is None else scaling.magnitude
        self._cos = self._sin = mx.zeros((0, dims // 2))

    def __call__(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        """Returns x [B, L, H, D] rotated; the first token of row b is at position offsets[b].

        The result has the shape and dtype of `x`; angles and products are computed in float32. Raises
        ValueError unless there is one offset for each row, and if a position is negative or reaches seq_len.
        """
        batch, length = x.shape[:2]
        if len(offsets) != batch:
            raise ValueError(f"{len(offsets)} offsets for {batch} rows")
        if min(offsets, default=0) < 0:
            raise ValueError(f"positions must be 0 to {self.seq_len - 1}")
        cos, sin = self.tables(max(offsets, default=0) + length)
        cos, sin = _at(offsets, length, cos), _at(offsets, length, sin)
        wide = x.astype(mx.float32)
        if self.traditional:
            first, second = wide[..., ::2], wide[..., 1::2]
        else:
            first, second = mx.split(wide, 2, axis=-1)
        turned = [first * cos - second * sin, first * sin + second * cos]
        if self.traditional:
            out = mx.stack(turned, axis=-1).reshape(x.shape)
        else:
            out = mx.concatenate(turned, axis=-1)
        return out.astype(x.dtype)

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Returns the cosines and sines [P, dims / 2] of positions 0 to P - 1, times `magnitude`, float32.

        P is at least num_positions and at most the larger of 256 and twice the most that was ever asked for,
        because a model with a million positions may serve a thousand. Earlier calls change no result.
        Raises ValueError if num_positions is above seq_len.
        """
        if num_positions > self.seq_len:
            raise ValueError(f"positions must be 0 to {self.seq_len - 1}")
        size = self._cos.shape[0]
        if num_positions > size:
            # Always whole steps, because other instructions may compute the last few numbers of an array.
            size = -(-max(num_positions, min(2 * size, self.seq_len)) // _STEP) * _STEP
            angles = mx.arange(size, dtype=mx.float32)[:, None] * self._frequencies
            self._cos, self._sin = self.magnitude * mx.cos(angles), self.magnitude * mx.sin(angles)
            mx.eval(self._cos, self._sin)
        return self._cos, self._sin


def _at(offsets: Sequence[int], length: int, table: mx.array) -> mx.array:
    """Returns the rows [B, L, 1, D / 2] of a table for L positions, starting at each offset."""
    if len(offsets) == 1:
        return table[None, offsets[0] : offsets[0] + length, None]
    positions = mx.array(list(offsets), mx.int32)[:, None] + mx.arange(length)
    return table[positions][:, :, None]
