"""Rotary positional encoding (Su et al. 2021, RoFormer, arXiv 2104.09864)."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import RopeScaling


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
        """Pair i of `dims` dimensions, from 0, turns by base^(-2i / dims) radians per position (eq. 15).

        Positions 0 to seq_len - 1 can be encoded. `traditional` pairs neighbours (0, 1), (2, 3), ...;
        otherwise dimension i is paired with i + dims / 2, as Qwen does. With `scaling` the frequencies are
        `scaling.scaled(frequencies, base)`, and all cosines and sines are multiplied by `scaling.magnitude`.
        Sets what operators read: `periods` [dims / 2], 1 / frequency in float32; `magnitude`, that factor,
        1.0 without scaling; and `base`, None with scaling. Raises ValueError for odd dims.
        """
        raise NotImplementedError("task 1.2.1")

    def __call__(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        """Rotate x [B, L, H, D]; the first token of row b is at position offsets[b].

        Same shape and dtype as `x`; angles and products in float32. Raises ValueError when there is not one
        offset for each row, and when a position is negative or reaches seq_len.
        """
        raise NotImplementedError("task 1.2.1")

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Cosines and sines [P, dims / 2] of positions 0 to P - 1, times `magnitude`, float32.

        P is num_positions or more, but at most twice as many as were ever asked for, or 256: a model may know
        a million positions and serve a thousand. What was asked for before changes no result.
        Raises ValueError for more than seq_len.
        """
        raise NotImplementedError("task 1.2.1")
