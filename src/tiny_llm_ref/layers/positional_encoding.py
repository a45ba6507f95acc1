"""Rotary positional encoding (Su et al. 2021, RoFormer, arXiv 2104.09864)."""

import mlx.core as mx

from tiny_llm_lab.native import kernels


class RoPE:
    """Rotates pairs of a head's dimensions by angles that grow with the token's position."""

    def __init__(self, dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> None:
        """Pair i of `dims` dimensions turns by base^(-2i / dims) radians a position (section 3.4.2).

        Positions 0 to seq_len - 1 can be encoded. `traditional` pairs neighbours (0, 1), (2, 3), ...;
        otherwise dimension i is paired with i + dims / 2, as Qwen does. Raises ValueError for odd dims.
        """
        if dims % 2:
            raise ValueError(f"RoPE needs an even number of dimensions, not {dims}")
        self.seq_len = seq_len
        self.traditional = traditional
        frequencies = base ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        angles = mx.arange(seq_len, dtype=mx.float32)[:, None] * frequencies
        self.cos, self.sin = mx.cos(angles), mx.sin(angles)  # [seq_len, dims / 2]

    def __call__(self, x: mx.array, offset: int | list[int] = 0) -> mx.array:
        """Rotate x [B, L, H, D]; its first token stands at position `offset`, one for all or one a row.

        Same shape and dtype as `x`; angles and products in float32. Raises ValueError when a position
        is negative or reaches seq_len, or when there is not one offset for each row.
        """
        if native := kernels(__package__):
            return native.rope(x, offset, self.cos, self.sin, self.traditional)
        cos, sin = self._at(offset, *x.shape[:2])
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

    def _at(self, offset: int | list[int], batch: int, length: int) -> tuple[mx.array, mx.array]:
        """Cosines and sines [1 or B, L, 1, D / 2] of the positions."""
        offsets = [offset] if isinstance(offset, int) else offset
        if not isinstance(offset, int) and len(offset) != batch:
            raise ValueError(f"{len(offset)} offsets for {batch} rows")
        if offsets and (min(offsets) < 0 or max(offsets) + length > self.seq_len):
            raise ValueError(f"positions must lie in 0 to {self.seq_len - 1}")
        if len(offsets) == 1:
            span = slice(offsets[0], offsets[0] + length)
            return self.cos[None, span, None], self.sin[None, span, None]
        positions = mx.array(offsets, mx.int32)[:, None] + mx.arange(length)
        return self.cos[positions][:, :, None], self.sin[positions][:, :, None]
