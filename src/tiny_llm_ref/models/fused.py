"""One layer on the C++ kernels: the arithmetic of a transformer block in a few large operators.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of a dozen operators each loses more time that way than its attention takes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from tiny_llm_lab.native import KernelOps, supports_packing
from tiny_llm_lab.types import QuantizedWeights, Weight

from ..cache.paged_attention import LayerCache, PagedLayer
from ..layers.moe import QwenMoE

if TYPE_CHECKING:
    from .qwen import QwenTransformerBlock

_TOGETHER = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


def can_fuse(weights: Mapping[str, Weight]) -> bool:
    """Whether the kernels can read a layer's `weights`, named as in QwenTransformerBlock.

    A mixture of experts (day 3.9) is not theirs to read: then the rest of the layer counts.
    They read dense matrices, and packed ones of 4 or 8 bits in groups of 32, 64 or 128; those that share
    an input (q, k and v; gate and up) must be packed alike.
    """
    together = _TOGETHER[:2] if "mlp.gate.weight" in weights else _TOGETHER
    packings = [{_packing(weights[f"{name}.weight"]) for name in names} for names in together]
    return all(
        len(kinds) == 1 and all(kind is None or supports_packing(*kind) for kind in kinds)
        for kinds in packings
    )


def fused_layer(
    native: KernelOps,
    layer: "QwenTransformerBlock",
    x: mx.array,
    offset: int | list[int] = 0,
    cache: LayerCache | None = None,
    keep: int | None = None,
    rows: mx.array | None = None,
) -> mx.array:
    """What `layer` makes of x [B, L, E] with a causal mask -> [B, keep, E], by the operators of `native`.

    Heads, attention and the rest of the layer: three operators besides those of the cache. A row of a batch
    sees its own cache's offset tokens, so no mask is needed. With `rows` (int32, from day 3.2 on) only these
    rows of the batch go on, [len(rows), keep, E].
    """
    attention, length = layer.self_attn, x.shape[1]
    kept = length if keep is None else min(keep, length)
    q, k, v = _heads(native, layer, x, offset, kept)
    scale = attention.config.head_dim**-0.5
    if isinstance(cache, PagedLayer):
        out = cache.attend(q, k, v, scale)
    else:
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        stored = length if cache is None else cache.offset
        out = native.attention(q, k, v, stored, True, scale, True)
    x = x if kept == length else x[:, length - kept :]
    if rows is not None:
        x, out = x[rows], out[rows]
    w_out, norm, mlp = attention.weights["o_proj.weight"], layer.post_attention_layernorm, layer.mlp
    if layer.is_whole and not isinstance(mlp, QwenMoE):
        return cast(
            mx.array,
            native.attn_out_mlp(x, out, w_out, norm.weight, norm.eps, mlp.w_gate, mlp.w_up, mlp.w_down),
        )
    x, normed = native.rms_norm(x, norm.weight, norm.eps, layer.all_sum(native.linear(out, [w_out])[0]))
    return x + layer.all_sum(mlp(normed))


def _heads(
    native: KernelOps, layer: "QwenTransformerBlock", x: mx.array, offset: int | list[int], kept: int
) -> list[mx.array]:
    """Queries [B, H, kept, D], keys and values [B, G, L, D]."""
    attention, norm = layer.self_attn, layer.input_layernorm
    w, rope, q_norm, k_norm = attention.weights, attention.rope, attention.q_norm, attention.k_norm
    names = ("q_proj", "k_proj", "v_proj")
    matrices, biases = [w[f"{name}.weight"] for name in names], [w.get(f"{name}.bias") for name in names]
    norms = (None if q_norm is None else q_norm.weight, None if k_norm is None else k_norm.weight)
    turns = (rope.cos, rope.sin, rope.traditional, offset)
    return cast(
        list[mx.array], native.qkv_rope(x, norm.weight, norm.eps, matrices, biases, *norms, *turns, kept)
    )


def _packing(w: Weight) -> tuple[int, int] | None:
    return (w.bits, w.group_size) if isinstance(w, QuantizedWeights) else None
