"""Rotary positional encoding (Su et al. 2021, RoFormer, arXiv 2104.09864)."""

import mlx.core as mx


class RoPE:
    """Rotates pairs of a head's dimensions by angles that grow with the token's position."""

    def __init__(self, dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> None:
        """Pair i of `dims` dimensions turns by base^(-2i / dims) radians a position (section 3.4.2).

        Positions 0 to seq_len - 1 can be encoded. `traditional` pairs neighbours (0, 1), (2, 3), ...;
        otherwise dimension i is paired with i + dims / 2, as Qwen does. Raises ValueError for odd dims.
        """
        raise NotImplementedError("task 1.2.1")

    def __call__(self, x: mx.array, offset: int | list[int] = 0) -> mx.array:
        """Rotate x [B, L, H, D]; its first token is at position `offset`, one for all rows or one each.

        Same shape and dtype as `x`; angles and products in float32. Raises ValueError when a position
        is negative or reaches seq_len, or when there is not one offset for each row.
        """
        raise NotImplementedError("task 1.2.1")

    @property
    def periods(self) -> mx.array:
        """Positions for each pair to turn by a radian: [dims / 2] float32."""
        raise NotImplementedError("task 1.2.1")

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Cosines and sines [P, dims / 2] of positions 0 to P - 1, float32, with P of num_positions or more.

        Computed when first asked for, for at most twice as many positions as were asked for, or 256: a model
        may know a million positions and serve a thousand. Raises ValueError for more than seq_len.
        """
        raise NotImplementedError("task 1.2.1")
