"""What compiled C++ offers to Python: the operators of a package, and the bridge that makes them."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.types import CommonOps, DeltaKernel, DeltaState, LayerWeights, Offsets, Rotary, Weight

# By layer the states of all requests, and where each request's rows begin.
NetStates = tuple[Sequence[list[DeltaState]], Sequence[int]]
StackResult = tuple[mx.array, list[list[mx.array]], list[list[DeltaState]]]
Note = tuple[str, float, float, float]  # operator, seconds, bytes it must move, operations it must do


class KernelSet(CommonOps, Protocol):
    """The C++ of one package for one instruction set; the class of that name in binding.cpp.

    Packed weights have 4 or 8 bits in groups of 32, 64 or 128, and those of one call are packed alike. A call
    with wrong shapes or dtypes raises ValueError at once.
    """

    def draw(self, logits: mx.array, how: DrawTable) -> mx.array:
        """Draws from logits [n, V] -> tokens [n] uint32."""

    def quantized_matmul_step(self, step: int, x: mx.array, weight: Weight) -> mx.array:
        """x [..., K] times the transpose of a packed weight [N, K] -> [..., N], by step 1 to 4 of day 2.2."""

    def attention(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        lengths: Offsets,
        causal: bool,
        scale: float,
        flat: bool = False,
    ) -> mx.array:
        """query [B, H, L, D] over key, value [B, G, S, D] -> [B, H, L, D], or [B, L, H * D] if `flat`.

        Row b attends to its first lengths[b] stored tokens, of which the last L are the new ones.
        """

    def qkv_rope(
        self,
        x: mx.array,
        norm: mx.array,
        eps: float,
        weights: Sequence[Weight],
        biases: Sequence[mx.array | None],
        query_norm: mx.array | None,
        key_norm: mx.array | None,
        cos: mx.array,
        sin: mx.array,
        traditional: bool,
        offsets: Offsets,
        kept: int,
    ) -> list[mx.array]:
        """Rotated queries [B, H, kept, D] of the last `kept` tokens, keys and values [B, G, L, D].

        x [B, L, E] is normalised by norm [E], projected by the three weights and rotated by the tables cos,
        sin [positions, D / 2] float32 from `offsets` on.
        """

    def attn_out_mlp(
        self,
        x: mx.array,
        attended: mx.array,
        out: Weight,
        norm: mx.array,
        eps: float,
        gate: Weight,
        up: Weight,
        down: Weight,
    ) -> mx.array:
        """A layer after its attention: output projection, residual, norm, SwiGLU MLP, residual -> like x.

        x is [..., E], attended [..., H * D]; the weights are out [E, H * D], gate and up [I, E], down [E, I].
        """

    def rope(
        self,
        x: mx.array,
        offsets: Offsets,
        cos: mx.array,
        sin: mx.array,
        traditional: bool = False,
        weight: mx.array | None = None,
        eps: float = 0.0,
    ) -> mx.array:
        """x [B, L, H, D], normalised by `weight` [D] if given, its first R dimensions rotated by cos, sin.

        These are [positions, R / 2], R at most D.
        """

    @property
    def gated_delta(self) -> DeltaKernel: ...

    def layer_stack(self, layers: Sequence[LayerWeights], dim: int, traditional: bool) -> "Stack":
        """The layers with heads `dim` wide as one operator; computes their weights where these are lazy."""


class Stack(Protocol):
    """Layers as one operator; the class LayerStack in stack.h.

    `stored` are keys, values and perhaps the scales of both, each a list with an array a layer, and `states`
    the fields of `StepStates`. The operators return x, and what is stored then in the same form.
    """

    def over_rows(
        self,
        x: mx.array,
        offsets: Offsets,
        cos: mx.array,
        sin: mx.array,
        stored: Sequence[Sequence[mx.array]],
        scale: float,
        kept: int,
        rows: Sequence[int] | None,
        states: NetStates,
    ) -> StackResult | None:
        """See `LayerStack.over_rows` of the types."""

    def over_new_rows(
        self,
        x: mx.array,
        cos: mx.array,
        sin: mx.array,
        room: int,
        scale: float,
        kept: int,
        rows: Sequence[int] | None,
        states: NetStates,
    ) -> StackResult:
        """See `LayerStack.over_new_rows` of the types; storage [B, G, room, D]."""

    def over_pages(
        self,
        x: mx.array,
        offsets: Offsets,
        cos: mx.array,
        sin: mx.array,
        stored: Sequence[Sequence[mx.array]],
        slots: mx.array,
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: mx.array,
        scale: float,
        kept: int,
        rows: Sequence[int] | None,
        states: NetStates,
    ) -> StackResult:
        """See `LayerStack.over_pages` of the types."""


MakeKernelSet = Callable[[str], KernelSet]  # from the path of a compiled library


class Binding(Protocol):
    """The compiled bridge to MLX, with the thread pool and the profile of the process."""

    KernelSet: MakeKernelSet

    def in_blocks(self, matrices: Sequence[mx.array]) -> list[mx.array]:
        """Each [..., O, n] in blocks of 16, see `QuantizedWeights`; computed at once."""

    def set_num_threads(self, count: int) -> None:
        """Raises ValueError if count < 1, RuntimeError if the system does not start so many."""

    def num_threads(self) -> int: ...

    def settle(self) -> None:
        """Forget the tasks that MLX skipped behind an operator's error."""

    def start_profile(self) -> None: ...

    def stop_profile(self) -> list[Note]: ...


class SmallOps(CommonOps, Protocol):
    """What a layer is made of."""

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], rotated from `offsets` on -> [B, H, L, D]."""


class ComposedOps:
    """`qkv_rope` and `attn_out_mlp` of `KernelOps`, by the small operators of the subclass."""

    def qkv_rope(
        self: SmallOps, x: mx.array, w: LayerWeights, rope: Rotary, offsets: Offsets, kept: int
    ) -> Sequence[mx.array]:
        """See `KernelOps.qkv_rope`."""
        length, dim = x.shape[1], 2 * rope.periods.size
        require_positions(rope, offsets, length)
        normed = self.rms_norm(x, w.norm, w.eps)[1]
        if kept == length:
            parts = self.linear(normed, w.qkv, w.biases)
        else:
            query = self.linear(normed[:, length - kept :], w.qkv[:1], w.biases[:1])
            parts = query + self.linear(normed, w.qkv[1:], w.biases[1:])
        q, k, v = [mx.unflatten(part, 2, (-1, dim)) for part in parts]
        if w.query_norm is not None:
            q = self.rms_norm(q, w.query_norm, w.eps)[1]
        if w.key_norm is not None:
            k = self.rms_norm(k, w.key_norm, w.eps)[1]
        behind = length - kept
        q = self.rotated(q, rope, [offset + behind for offset in offsets] if behind else offsets)
        return q, self.rotated(k, rope, offsets), v.transpose(0, 2, 1, 3)

    def norm_rope(
        self: SmallOps, x: mx.array, weight: mx.array, eps: float, rope: Rotary, offsets: Offsets
    ) -> mx.array:
        """See `KernelOps.norm_rope`."""
        require_positions(rope, offsets, x.shape[1])
        return self.rotated(self.rms_norm(x, weight, eps)[1], rope, offsets)

    def attn_out_mlp(self: SmallOps, x: mx.array, attended: mx.array, w: LayerWeights) -> mx.array:
        """See `KernelOps.attn_out_mlp`."""
        x, normed = self.rms_norm(x, w.mlp_norm, w.eps, self.linear(attended, [w.out])[0])
        gated, raised = self.linear(normed, [w.gate, w.up])
        return x + self.linear(self.swiglu(gated, raised), [w.down])[0]

    def attention_to_all(self, query: mx.array, key: mx.array, value: mx.array, scale: float) -> mx.array:
        """query [B, H, L, D] over all of key, value [B, H, S, D] -> [B, L, H * D]."""
        out = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale)
        return out.transpose(0, 2, 1, 3).flatten(2)

    def layer_stack(self, layers: Sequence[LayerWeights], rope: Rotary) -> None:
        """See `KernelOps.layer_stack`."""


def furthest(offsets: Offsets, length: int) -> int:
    """The number of positions that `length` tokens after `offsets` reach."""
    return max(offsets, default=0) + length


def require_positions(rope: Rotary, offsets: Offsets, length: int) -> None:
    """Raise ValueError for a position that `rope` does not have."""
    if min(offsets, default=0) < 0 or furthest(offsets, length) > rope.seq_len:
        raise ValueError(f"positions must be 0 to {rope.seq_len - 1}")
