"""The tower of Qwen3-VL and Qwen3.5, which turns the patches of a picture into rows of the model's input.

Patches attend to all patches of their picture (arXiv 2511.21631; that of Qwen3.5 is the same without
DeepStack). The work comes in pieces, so that other requests' steps go between them.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, pi, prod
from typing import Final, Protocol

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.models.weights.tower_layout import TOWER
from tiny_llm_lab.runtime.native.table_rope import TableRope
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.types import Offsets, QuantizedWeights, Rotary, Weight
from tiny_llm_lab.types.computing.pictures import PictureConfig

_EPS: Final = 1e-6
_BASE: Final = 10000.0  # of the rotary positions
_PIECE: Final = 512  # patches of a piece of work
_ATTENTION: Final = 3  # its products take so many times as long as those of matrices, measured on a CPU
_GELU: Final = 2 * (2 / pi) ** 0.5
_MEAN: Final = 127.5  # of the pixels, and their deviation


class TowerOps(Protocol):
    """The operators of a tower; each set of `KernelOps` has them."""

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array: ...
    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]: ...
    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array: ...
    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array: ...
    def attention_to_all(self, query: mx.array, key: mx.array, value: mx.array, scale: float) -> mx.array: ...


@dataclass(frozen=True, eq=False)
class Rows:
    """What a tower made of a picture: rows for the model's input, and those added after its first layers."""

    embedded: mx.array  # [n, E]
    deep: tuple[mx.array, ...] = ()  # [n, E] each

    @property
    def nbytes(self) -> int:
        """The size in bytes of all rows."""
        return sum(part.nbytes for part in (self.embedded, *self.deep))


# Yields what each piece of work cost, in multiplications, once it is done.
Work = Generator[int, None, Rows]


class Tower:
    """Computes the `Rows` of pictures."""

    def __init__(self, config: PictureConfig, weights: Mapping[str, Weight], ops: TowerOps) -> None:
        """`weights` are those of a checkpoint, see TOWER. Sets config."""
        self.config, self._weights, self._ops = config, weights, ops
        self._dtype = self._vector("blocks.0.norm1.weight").dtype

    def work(self, picture: Picture) -> Work:
        """Compute the rows of `picture`, piece by piece; the generator's value is the rows."""
        config, pieces = self.config, _pieces(len(picture.patches))
        x, cost = self._embedded(picture), prod(picture.patches.shape) * config.hidden_size
        mx.eval(x)
        yield cost
        rope = self._rope(picture)
        deep: list[mx.array] = []
        for layer in range(config.num_layers):
            name, parts = f"blocks.{layer}", []
            for piece in pieces:
                parts.append(self._heads(name, x[piece], rope, piece.start))
                mx.eval(parts[-1])
                yield (piece.stop - piece.start) * 3 * config.hidden_size**2
            k, v = (mx.concatenate([part[i] for part in parts], axis=2) for i in (1, 2))
            outs = []
            for piece, part in zip(pieces, parts, strict=True):
                outs.append(self._rest(name, x[piece], part[0], k, v))
                mx.eval(outs[-1])
                yield (piece.stop - piece.start) * self._rest_cost(len(x))
            x = mx.concatenate(outs)
            if layer in config.deep_layers:
                deep.append(self._merged(f"deepstack_merger_list.{len(deep)}", x, is_wide=True))
                mx.eval(deep[-1])
                yield self._merging_cost(len(x))
        rows = Rows(self._merged("merger", x, is_wide=False), tuple(deep))
        mx.eval(rows.embedded)
        yield self._merging_cost(len(x))
        return rows

    def _embedded(self, picture: Picture) -> mx.array:
        """The patches [N, 3, P, P] as the tower's input [N, C], with their places."""
        config = self.config
        pixels = (mx.array(picture.patches).astype(mx.float32) - _MEAN) / _MEAN
        frames = mx.repeat(pixels[:, :, None], config.num_frames, axis=2).flatten(1)
        x = self._linear("patch_embed.proj", frames.astype(self._dtype))
        return x + self._places(picture).astype(self._dtype)

    def _places(self, picture: Picture) -> mx.array:
        """The learned places, between those of a square grid, [N, C] float32."""
        table, side = self._weights[f"{TOWER}pos_embed.weight"], isqrt(self.config.num_positions)
        row, column = _grid(picture, self.config.merge).T
        at_row = row * np.float32((side - 1) / max(1, picture.rows - 1))
        at_column = column * np.float32((side - 1) / max(1, picture.columns - 1))
        found = mx.zeros((len(row), self.config.hidden_size))
        for i, near_row in _neighbours(at_row, side):
            for j, near_column in _neighbours(at_column, side):
                share = mx.array((near_row * near_column)[:, None])
                near = self._ops.embedding(mx.array(i * side + j), table)
                found = found + near.astype(mx.float32) * share
        return found

    def _rope(self, picture: Picture) -> TableRope:
        """Half of a head's pairs turn with a patch's row, the others with its column."""
        pairs = self.config.hidden_size // self.config.num_heads // 4
        frequencies = _BASE ** (-np.arange(pairs, dtype=np.float32) / pairs)
        angles = (_grid(picture, self.config.merge)[:, :, None] * frequencies).reshape(-1, 2 * pairs)
        return TableRope(mx.cos(mx.array(angles)), mx.sin(mx.array(angles)))

    def _heads(self, name: str, x: mx.array, rope: TableRope, start: int) -> list[mx.array]:
        """Rotated queries, keys and values [1, H, n, D] of patches from `start` on."""
        qkv = self._linear(f"{name}.attn.qkv", self._norm(f"{name}.norm1", x))
        q, k, v = mx.split(qkv.reshape(1, len(x), 3 * self.config.num_heads, -1), 3, axis=2)
        rotated = [self._ops.rotated(part, rope, [start]) for part in (q, k)]
        return [*rotated, v.transpose(0, 2, 1, 3)]

    def _rest(self, name: str, x: mx.array, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """A layer from its attention on, for some patches: x [n, C] and q [1, H, n, D] -> [n, C]."""
        attended = self._ops.attention_to_all(q, k, v, q.shape[-1] ** -0.5)[0]
        x = x + self._linear(f"{name}.attn.proj", attended)
        inner = self._linear(f"{name}.mlp.linear_fc1", self._norm(f"{name}.norm2", x))
        return x + self._linear(f"{name}.mlp.linear_fc2", self._ops.sigmoid_gate(inner, _gate_of_gelu(inner)))

    def _rest_cost(self, num_patches: int) -> int:
        width = self.config.hidden_size
        return width * (width + 2 * self.config.intermediate_size + _ATTENTION * 2 * num_patches)

    def _merging_cost(self, num_patches: int) -> int:
        width = self.config.hidden_size * self.config.merge**2
        return num_patches // self.config.merge**2 * width * 2 * width

    def _merged(self, name: str, x: mx.array, is_wide: bool) -> mx.array:
        """Rows [n, E] of merge x merge patches each; `is_wide`: normalised together, not one by one."""
        width = self.config.hidden_size * self.config.merge**2
        x = self._norm(f"{name}.norm", x.reshape(-1, width)) if is_wide else self._norm(f"{name}.norm", x)
        inner = self._linear(f"{name}.linear_fc1", x.reshape(-1, width))
        return self._linear(f"{name}.linear_fc2", _gelu(inner))

    def _linear(self, name: str, x: mx.array) -> mx.array:
        weight, bias = self._weights[f"{TOWER}{name}.weight"], self._vector(f"{name}.bias")
        return self._ops.linear(x, [weight], [bias])[0]

    def _norm(self, name: str, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self._vector(f"{name}.weight"), self._vector(f"{name}.bias"), _EPS)

    def _vector(self, name: str) -> mx.array:
        found = self._weights[f"{TOWER}{name}"]
        assert not isinstance(found, QuantizedWeights), f"{name} is a vector"
        return found


def _pieces(num_patches: int) -> list[slice]:
    return [slice(i, min(i + _PIECE, num_patches)) for i in range(0, num_patches, _PIECE)]


def _grid(picture: Picture, merge: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    """Row and column of each patch, [N, 2]: patches that are merged come one after the other."""
    places = np.indices((picture.rows, picture.columns), np.float32)
    blocks = places.reshape(2, picture.rows // merge, merge, picture.columns // merge, merge)
    return blocks.transpose(1, 3, 2, 4, 0).reshape(-1, 2)


def _neighbours(at: "np.ndarray", side: int) -> list[tuple["np.ndarray", "np.ndarray"]]:
    """The places before and after each of `at` in a grid of `side`, and their shares."""
    before = np.floor(at).astype(np.int32)
    after, part = np.minimum(before + 1, side - 1), at - before
    return [(before, 1 - part), (after, part)]


def _gelu(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * (1 + mx.erf(wide / 2**0.5)) / 2).astype(x.dtype)


def _gate_of_gelu(x: mx.array) -> mx.array:
    """Whose sigmoid, times x, is GELU with tanh, as 1 + tanh(u) is twice the sigmoid of 2 u."""
    wide = x.astype(mx.float32)
    return (wide * (_GELU + 0.044715 * _GELU * wide * wide)).astype(x.dtype)
