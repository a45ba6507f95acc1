"""The operators of a model as the C++ kernels of a package: what runs on a CPU."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.ops import ComposedOps, KernelSet, NetStates, Stack, furthest
from tiny_llm_lab.types import (
    DeltaState,
    DrawRow,
    LayerStack,
    LayerWeights,
    Offsets,
    QuantizedWeights,
    Rotary,
    Wanted,
    Weight,
)
from tiny_llm_lab.types.computing.layer_stack import NO_STEP_STATES, StepStates, Stored
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

_ROOM: Final = 64  # new storage has room for a multiple of this many tokens


class CppLayerStack:
    """`LayerStack` on the kernels. Its weights are computed by the first step, not before."""

    def __init__(self, kernels: KernelSet, layers: Sequence[LayerWeights], rope: Rotary) -> None:
        self._kernels, self._layers, self._rope = kernels, layers, rope
        norm = next((layer.key_norm for layer in layers if layer.key_norm is not None), None)
        # Without norms of heads all dimensions are rotated.
        self._dim = 2 * rope.periods.size if norm is None else norm.size
        self._states = NO_STEP_STATES

    def with_states(self, states: StepStates) -> LayerStack:
        """See `LayerStack.with_states`."""
        _ = self._stack  # once, and not in each copy
        bound = copy(self)
        bound._states = states
        return bound

    def over_rows(
        self,
        x: mx.array,
        offsets: Offsets,
        keys: Sequence[mx.array],
        values: Sequence[mx.array],
        wanted: Wanted,
    ) -> Stored | None:
        """See `LayerStack.over_rows`."""
        cos, sin = self._rope.tables(furthest(offsets, x.shape[1]))
        made = self._stack.over_rows(
            x, offsets, cos, sin, [list(keys), list(values)], self._dim**-0.5, *self._choice(wanted, x)
        )
        if made is None:
            return None
        x, (new_keys, new_values), after = made
        self._keep(after)
        return x, new_keys, new_values

    def over_new_rows(self, x: mx.array, wanted: Wanted) -> Stored:
        """See `LayerStack.over_new_rows`."""
        length = x.shape[1]
        cos, sin = self._rope.tables(length)
        room = -(-length // _ROOM) * _ROOM
        choice = self._choice(wanted, x)
        x, (keys, values), after = self._stack.over_new_rows(x, cos, sin, room, self._dim**-0.5, *choice)
        self._keep(after)
        return x, keys, values

    def over_pages(self, x: mx.array, cache: PagedCache, layout: StepLayout, wanted: Wanted) -> mx.array:
        """See `LayerStack.over_pages`."""
        cos, sin = self._rope.tables(furthest(layout.positions, 1))
        pools = [part for part in (cache.keys, cache.values, cache.key_scales, cache.value_scales) if part]
        where = (layout.slots, layout.query_starts, layout.lengths, layout.block_tables)
        x, pools, after = self._stack.over_pages(
            x, layout.positions, cos, sin, pools, *where, self._dim**-0.5, *self._choice(wanted, x)
        )
        self._keep(after)
        cache.keys[:], cache.values[:] = pools[:2]
        if len(pools) > 2:
            cache.key_scales[:], cache.value_scales[:] = pools[2:]
        return x

    @cached_property
    def _stack(self) -> Stack:
        return self._kernels.layer_stack(self._layers, self._dim, self._rope.traditional)

    def _choice(self, wanted: Wanted, x: mx.array) -> tuple[int, Sequence[int] | None, NetStates]:
        """How many tokens of each row of x [B, L, E] go on, which rows, and from which states."""
        return min(wanted.last, x.shape[1]), wanted.rows, (self._states.layers, self._states.starts)

    def _keep(self, after: Sequence[list[DeltaState]]) -> None:
        for layer, new in zip(self._states.layers, after, strict=True):
            layer[:] = new


class CppOps:
    """`KernelOps` of a model whose matrices the kernels can all read, as `can_read` says."""

    name = "cpp"
    starts_early = True
    has_free_rows = True

    def __init__(self, kernels: KernelSet, has_stack: bool = True) -> None:
        self._kernels, self._has_stack = kernels, has_stack
        self.embedding, self.rms_norm = kernels.embedding, kernels.rms_norm
        self.swiglu, self.sigmoid_gate = kernels.swiglu, kernels.sigmoid_gate
        self.paged_attention, self.append_rows = kernels.paged_attention, kernels.append_rows
        self.append, self.grow, self.quantize_rows = kernels.append, kernels.grow, kernels.quantize_rows
        self.argmax, self.score = kernels.argmax, kernels.score
        self.route, self.expert_mlp = kernels.route, kernels.expert_mlp

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        return self._kernels.linear(x, list(weights), list(biases))

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """See `KernelOps.attention`."""
        return self._kernels.attention(query, key, value, lengths, True, scale, True)

    def attention_to_all(self, query: mx.array, key: mx.array, value: mx.array, scale: float) -> mx.array:
        """query [B, H, L, D] over all of key, value [B, H, S, D] -> [B, L, H * D]."""
        lengths = [key.shape[2]] * len(key)
        return self._kernels.attention(query, key, value, lengths, False, scale, True)

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], rotated from `offsets` on -> [B, H, L, D]."""
        cos, sin = rope.tables(furthest(offsets, x.shape[1]))
        return self._kernels.rope(x, offsets, cos, sin, rope.traditional).transpose(0, 2, 1, 3)

    def draw(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """See `KernelOps.draw`."""
        return self._kernels.draw(logits, DrawTable.of(rows, logits.shape[-1]))

    def qkv_rope(
        self, x: mx.array, w: LayerWeights, rope: Rotary, offsets: Offsets, kept: int
    ) -> Sequence[mx.array]:
        """See `KernelOps.qkv_rope`."""
        cos, sin = rope.tables(furthest(offsets, x.shape[1]))
        parts = (w.qkv, w.biases, w.query_norm, w.key_norm)
        return self._kernels.qkv_rope(x, w.norm, w.eps, *parts, cos, sin, rope.traditional, offsets, kept)

    def norm_rope(
        self, x: mx.array, weight: mx.array, eps: float, rope: Rotary, offsets: Offsets
    ) -> mx.array:
        """See `KernelOps.norm_rope`."""
        cos, sin = rope.tables(furthest(offsets, x.shape[1]))
        return self._kernels.rope(x, offsets, cos, sin, rope.traditional, weight, eps).transpose(0, 2, 1, 3)

    def attn_out_mlp(self, x: mx.array, attended: mx.array, w: LayerWeights) -> mx.array:
        """See `KernelOps.attn_out_mlp`."""
        return self._kernels.attn_out_mlp(x, attended, w.out, w.mlp_norm, w.eps, w.gate, w.up, w.down)

    def layer_stack(self, layers: Sequence[LayerWeights], rope: Rotary) -> LayerStack | None:
        """See `KernelOps.layer_stack`."""
        return CppLayerStack(self._kernels, layers, rope) if self._has_stack else None


class UnevenCppOps(ComposedOps, CppOps):
    """`KernelOps` of a model with some matrices that no kernel reads: MLX multiplies those, in float32."""

    def __init__(self, kernels: KernelSet, others: MlxOps) -> None:
        """`others` compute what the kernels cannot."""
        super().__init__(kernels)
        self._others = others
        self.embedding, self.expert_mlp = self._embedding, self._expert_mlp

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        added = biases or [None] * len(weights)
        return [
            (self._kernels if can_read([w]) else self._others).linear(x, [w], [bias])[0]
            for w, bias in zip(weights, added, strict=True)
        ]

    def _embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        return (self._kernels if can_read([weight]) else self._others).embedding(tokens, weight)

    def _expert_mlp(
        self, x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
    ) -> mx.array:
        is_read = can_read([gate, up]) and can_read([down])
        return (self._kernels if is_read else self._others).expert_mlp(x, experts, shares, gate, up, down)


def can_read(weights: Sequence[Weight]) -> bool:
    """Whether the kernels can multiply one x with all of `weights` at once: dense, or packed alike."""
    packings = {_packing(w) for w in weights}
    return len(packings) <= 1 and all(packing is None or supports_packing(*packing) for packing in packings)


def can_read_model(weights: Mapping[str, Weight]) -> bool:
    """Whether the kernels can read all `weights` of a checkpoint, under their names in it."""
    together: dict[str, list[Weight]] = {}
    for name, w in weights.items():
        together.setdefault(_shared_input(name), []).append(w)
    return all(can_read(group) for group in together.values())


def _shared_input(name: str) -> str:
    """The name of what a parameter is multiplied with: q, k and v have the same, and so have gate and up, and
    the inputs of a gated delta net.
    """
    block, _, kind = name.rpartition(".")
    module, _, projection = block.rpartition(".")
    projection = projection.partition("in_proj_")[1] or projection
    shared = {"q_proj": "heads", "k_proj": "heads", "v_proj": "heads", "gate_proj": "gate", "up_proj": "gate"}
    return f"{module}.{shared.get(projection, projection)}.{kind}"


def _packing(w: Weight) -> tuple[int, int, str] | None:
    return (w.bits, w.group_size, w.mode) if isinstance(w, QuantizedWeights) and w.bits else None


def supports_packing(bits: int, group_size: int, mode: str = "affine") -> bool:
    """Whether the kernels read weights that are packed so; the other widths are rare."""
    return mode == "affine" and bits in (4, 8) and group_size in (32, 64, 128)
