"""Rotary positions by a table with a row for each token, whatever its position is made of."""

import mlx.core as mx

from tiny_llm_lab.types import Offsets


class TableRope:
    """A `Rotary` whose position i is row i of its tables, as pictures need, whose tokens have several."""

    traditional = False
    base: float | None = None
    magnitude = 1.0  # it is in the tables

    def __init__(self, cos: mx.array, sin: mx.array) -> None:
        """cos, sin [T, R / 2] float32 turn the first R dimensions of a head."""
        self._cos, self._sin = cos, sin
        self.seq_len, pairs = cos.shape
        self.periods = mx.ones((pairs,))

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """See `Rotary.tables`: all rows."""
        return self._cos, self._sin

    def __call__(self, x: mx.array, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], all of it rotated; the first token of row b is row offsets[b] of the tables."""
        places = mx.array(list(offsets))[:, None] + mx.arange(x.shape[1])
        cos, sin = self._cos[places][:, :, None], self._sin[places][:, :, None]
        first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
        turned = mx.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
        return turned.astype(x.dtype)

    def rotated(self, x: mx.array, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], its first R dimensions rotated -> [B, H, L, D]."""
        dims = 2 * self.periods.size
        turned = mx.concatenate([self(x[..., :dims], offsets), x[..., dims:]], axis=-1)
        return turned.transpose(0, 2, 1, 3)
