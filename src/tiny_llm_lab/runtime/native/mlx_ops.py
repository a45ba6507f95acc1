"""The operators of a model as MLX's own fused ones: what runs on every GPU, and on request on a CPU."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.native.composed import ComposedOps
from tiny_llm_lab.runtime.native.device.decode_kernel import DecodeKernel
from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.runtime.native.mlx_draw import draw, score
from tiny_llm_lab.runtime.native.mlx_pages import MlxPages, cleared, put, quantize_rows
from tiny_llm_lab.types import DrawRow, Offsets, QuantizedWeights, Rotary, Weight

Made = TypeVar("Made")
# cuDNN takes decodes only where rows have room for a multiple of so many tokens (MLX 0.32, cuda/sdpa.cpp).
_CUDNN_ROOM = 256
# From so many uses of an expert on, sorting costs less than reading a matrix more than once.
_SORT_FROM = 64


class MlxOps(ComposedOps):
    """`KernelOps` by `mx.fast` and `mx.quantized_matmul`, with no launch more than these need.

    What follows from a step alone (offsets, masks, places in storage) is made for its first layer and kept
    for the others.
    """

    name = "mlx"
    starts_early = False
    has_free_rows = False

    def __init__(
        self,
        widens: bool,
        kernel: DecodeKernel | None = None,
        *,
        masks: bool = False,
        reads_hidden: bool | None = None,
    ) -> None:
        """Take what the self-tests on a device found.

        `widens`: products of 16 bits are made in float32, as MLX's CPU backend needs them. `kernel`: for
        decodes over blocks. `masks`: MLX's causal mask is wrong there, so that arrays take its place.
        `reads_hidden`: MLX's attention reads the values that an array masks, and multiplies them by 0. None:
        as on the default device; Metal's kernel for a few rows leaves them out.
        """
        self._widens, self._masks = widens, masks
        self._reads_hidden = not _is_metal() if reads_hidden is None else reads_hidden
        self._kept: dict[str, tuple[Hashable, object]] = {}
        pages = MlxPages(self._once, self._causal, kernel, self._reads_hidden)
        self.paged_attention, self.append_rows = pages.attention, pages.append_rows
        self.swiglu, self.sigmoid_gate, self.quantize_rows = _swiglu, _gated, quantize_rows
        self.score = score

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """See `KernelOps.embedding`."""
        if not isinstance(weight, QuantizedWeights):
            return weight[tokens]
        # MLX decodes no empty matrix.
        flat = tokens.reshape(-1) if tokens.size else mx.zeros((1,), mx.int32)
        rows = weight.mapped(lambda part: part[flat]).dequantized()[: tokens.size]
        return rows.reshape(*tokens.shape, rows.shape[-1])

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        return [self._product(x, w, biases[i] if biases else None) for i, w in enumerate(weights)]

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """See `KernelOps.rms_norm`."""
        x = x if delta is None else x + delta
        return x, mx.fast.rms_norm(x, weight, eps)

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], rotated from `offsets` on -> [B, H, L, D]."""
        several = tuple(offsets)
        if rope.magnitude != 1:
            x = x * mx.array(rope.magnitude, x.dtype)
        # One offset for several rows has been wrong in released versions of MLX: an array never was.
        alone = len(several) == 1
        at = several[0] if alone else self._once("at", several, partial(mx.array, several, mx.int32))
        return mx.fast.rope(
            x.transpose(0, 2, 1, 3),
            2 * rope.periods.size,
            traditional=rope.traditional,
            base=rope.base,
            scale=1.0,
            offset=at,
            freqs=rope.periods if rope.base is None else None,
        )

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """See `KernelOps.attention`."""
        new, stored = query.shape[2], key.shape[2]
        mask: str | mx.array | None = None
        if any(length != stored for length in lengths):
            visible = (tuple(lengths), new, stored)
            mask = self._once("mask", visible, partial(_visible, *visible))
            value = cleared(value, mask) if self._reads_hidden else value
        if mask is None and new > 1:
            mask = self._causal(new, key.shape[2])
        out = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
        return out.transpose(0, 2, 1, 3).flatten(2)

    def expert_mlp(
        self, x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
    ) -> mx.array:
        """See `KernelOps.expert_mlp`. The sum is made in x's dtype."""
        uses, per_token = experts.reshape(-1), experts.shape[-1]
        order = mx.argsort(uses) if uses.size >= _SORT_FROM else None
        chosen = uses if order is None else uses[order]
        rows = mx.repeat(x, per_token, axis=0) if order is None else x[order // per_token]
        times = partial(self._expert_product, experts=chosen, is_sorted=order is not None)
        out = times(_swiglu(times(rows, gate), times(rows, up)), down)
        out = (out if order is None else out[mx.argsort(order)]).reshape(*experts.shape, -1)
        return mx.sum(out * shares[..., None].astype(out.dtype), axis=-2)

    def append(self, stored: mx.array, added: mx.array, offsets: Offsets) -> mx.array:
        """See `KernelOps.append`."""
        batch, groups, new, _ = added.shape
        if len(offsets) == 1:
            stored[:batch, :, offsets[0] : offsets[0] + new] = added
            return stored
        room = stored.shape[2]
        key = (tuple(offsets), groups, new, room)
        places = self._once("places", key, partial(_places, *key))
        return put(stored, places, added)

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """See `KernelOps.grow`. On CUDA there is room for whole multiples of 256 tokens."""
        room = -(-room // _CUDNN_ROOM) * _CUDNN_ROOM if is_cuda() else room
        grown = mx.zeros((rows, stored.shape[1], room, stored.shape[3]), stored.dtype)
        if used and max(used):
            old = slice(None, len(used)), slice(None), slice(None, max(used))
            grown[old] = stored[old]
        return grown

    def argmax(self, x: mx.array) -> mx.array:
        """See `KernelOps.argmax`."""
        return mx.argmax(x, axis=-1)

    def draw(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """See `KernelOps.draw`."""
        return draw(logits, DrawTable.of(rows, logits.shape[-1]))

    def _product(self, x: mx.array, w: Weight, bias: mx.array | None) -> mx.array:
        if x.size == 0:  # MLX's CPU operator divides by the number of rows
            return mx.zeros(
                (*x.shape[:-1], w.shape[0] if isinstance(w, mx.array) else w.weight.shape[0]), x.dtype
            )
        wide = x.astype(mx.float32) if self._widens else x
        if isinstance(w, QuantizedWeights):
            scales, biases = w.scales_for(wide.dtype)
            out = mx.quantized_matmul(wide, w.weight, scales, biases, True, w.group_size, w.bits, mode=w.mode)
            return (out if bias is None else out + bias).astype(x.dtype)
        w = w.astype(wide.dtype)
        return (wide @ w.T if bias is None else mx.addmm(bias, wide, w.T)).astype(x.dtype)

    def _expert_product(self, x: mx.array, w: Weight, experts: mx.array, is_sorted: bool) -> mx.array:
        """Row t of x [T, I] times the transpose of w[experts[t]], w [N, O, I] -> [T, O]."""
        rows = x[:, None].astype(mx.float32) if self._widens else x[:, None]
        if isinstance(w, QuantizedWeights):
            scales, biases = w.scales_for(rows.dtype)
            packed, packing = (w.weight, scales, biases), (w.group_size, w.bits, w.mode)
            out = mx.gather_qmm(rows, *packed, None, experts, True, *packing, sorted_indices=is_sorted)
        else:
            matrices = w.astype(rows.dtype).swapaxes(-1, -2)
            out = mx.gather_mm(rows, matrices, rhs_indices=experts, sorted_indices=is_sorted)
        return out[:, 0].astype(x.dtype)

    def _causal(self, num_new: int, stored: int) -> str | mx.array:
        """The mask of the last `num_new` of `stored` tokens."""
        if not self._masks:
            return "causal"
        return self._once("causal", (num_new, stored), partial(_visible, (stored,), num_new, stored))

    def _once(self, what: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns; called again only if `key` differs from the last call for `what`."""
        kept = self._kept.get(what)
        if kept is None or kept[0] != key:
            self._kept[what] = kept = (key, make())
        return cast(Made, kept[1])


def is_cuda() -> bool:
    """Whether MLX computes on CUDA."""
    return mx.cuda.is_available() and mx.default_device() == mx.gpu


def _is_metal() -> bool:
    return mx.metal.is_available() and mx.default_device() == mx.gpu


@partial(mx.compile, shapeless=True)
def _swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


@partial(mx.compile, shapeless=True)
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


def _visible(lengths: tuple[int, ...], new: int, stored: int) -> mx.array:
    """Which stored tokens each row's new ones see, [B, 1, L, S]."""
    last = [[[[length - new + i] for i in range(new)]] for length in lengths]
    return mx.arange(stored) <= mx.array(last, mx.int32)


def _places(offsets: tuple[int, ...], groups: int, new: int, room: int) -> mx.array:
    """Where the tokens behind each row's offset lie in storage [B, G, room] as one axis, [B * G * L].

    NumPy counts them: a GPU would start four operators for some dozens of numbers.
    """
    heads = np.arange(len(offsets) * groups).reshape(-1, groups, 1) * room
    tokens = np.array(offsets)[:, None, None] + np.arange(new)
    return mx.array((heads + tokens).astype(np.uint32).reshape(-1))
