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
        """Pair i (from 0) of `dims` dimensions turns by base^(-2i / dims) radians a position (eq. 15).

        You can encode positions 0 to seq_len - 1. `traditional` pairs neighbours: (0, 1), (2, 3), ...
        Otherwise dimension i is paired with i + dims / 2, as Qwen does. With `scaling` the frequencies are
        `scaling.scaled(frequencies, base)`, and all cosines and sines are multiplied by `scaling.magnitude`.
        Sets what operators read: `periods` [dims / 2], 1 / frequency in float32; `magnitude`, the factor
        of the cosines and sines, 1.0 without scaling; and `base`, None with scaling. Raises ValueError for
        odd dims.
        """
        raise NotImplementedError("task 1.2.1")

    def __call__(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        """Returns x [B, L, H, D] rotated; the first token of row b is at position offsets[b].

        The result has the shape and dtype of `x`; angles and products are computed in float32. Raises
        ValueError unless there is one offset for each row, and if a position is negative or reaches seq_len.
        """
        raise NotImplementedError("task 1.2.1")

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Returns the cosines and sines [P, dims / 2] of positions 0 to P - 1, times `magnitude`, float32.

        P is at least num_positions and at most the larger of 256 and twice the most that was ever asked for,
        because a model with a million positions may serve a thousand. Earlier calls change no result.
        Raises ValueError if num_positions is above seq_len.
        """
        raise NotImplementedError("task 1.2.1")
