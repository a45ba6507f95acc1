"""One layer on the C++ kernels: the arithmetic of a transformer block in a few large operators.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of a dozen operators each loses more time that way than its attention takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.native import KernelOps, supports_packing
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, Weight

from ..cache.paged_attention import LayerCache, PagedLayer
from ..layers.positional_encoding import RoPE

_TOGETHER = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


@dataclass(frozen=True)
class LayerParts:
    """What a transformer layer computes with."""

    config: ModelConfig
    weights: Mapping[str, Weight]  # named as in QwenTransformerBlock
    rope: RoPE
    mlp: Callable[[mx.array], mx.array]  # the feed-forward, without norm and residual
    all_sum: Callable[[mx.array], mx.array]  # adds up over all ranks (day 3.9)
    is_whole: bool  # there is one rank: a sum over all of them changes nothing


def can_fuse(weights: Mapping[str, Weight]) -> bool:
    """Whether the kernels can read a layer's `weights`, named as in QwenTransformerBlock.

    Dense matrices can be read, and packed ones of 4 or 8 bits in groups of 32, 64 or 128; those that share
    an input (q, k and v; gate and up) must be packed alike. MoE weights (day 3.9) are not fused: of
    such a layer only the attention's matrices are checked.
    """
    together = _TOGETHER[:2] if _has_experts(weights) else _TOGETHER
    packings = [{_packing(weights[f"{name}.weight"]) for name in names} for names in together]
    is_readable = (kind is None or supports_packing(*kind) for kinds in packings for kind in kinds)
    return all(is_readable) and all(len(kinds) == 1 for kinds in packings)


def fused_layer(
    native: KernelOps,
    layer: LayerParts,
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
    length = x.shape[1]
    kept = length if keep is None else min(keep, length)
    q, k, v = _heads(native, layer, x, offset, kept)
    scale = layer.config.head_dim**-0.5
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
    w, eps = layer.weights, layer.config.rms_norm_eps
    w_out, norm = w["self_attn.o_proj.weight"], _vector(w, "post_attention_layernorm.weight")
    if layer.is_whole and not _has_experts(w):
        gate, up, down = (w[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return native.attn_out_mlp(x, out, w_out, norm, eps, gate, up, down)
    x, normed = native.rms_norm(x, norm, eps, layer.all_sum(native.linear(out, [w_out])[0]))
    return x + layer.all_sum(layer.mlp(normed))


def _heads(
    native: KernelOps, layer: LayerParts, x: mx.array, offset: int | list[int], kept: int
) -> list[mx.array]:
    """Queries [B, H, kept, D], keys and values [B, G, L, D]."""
    w, eps, rope = layer.weights, layer.config.rms_norm_eps, layer.rope
    names = [f"self_attn.{part}_proj" for part in "qkv"]
    matrices = [w[f"{name}.weight"] for name in names]
    biases = [_vector(w, f"{name}.bias") if f"{name}.bias" in w else None for name in names]
    q_norm, k_norm = (
        _vector(w, name) if (name := f"self_attn.{part}_norm.weight") in w else None for part in "qk"
    )
    furthest = offset if isinstance(offset, int) else max(offset, default=0)
    cos, sin = rope.tables(furthest + x.shape[1])
    norm = _vector(w, "input_layernorm.weight")
    return native.qkv_rope(
        x, norm, eps, matrices, biases, q_norm, k_norm, cos, sin, rope.traditional, offset, kept
    )


def _vector(weights: Mapping[str, Weight], name: str) -> mx.array:
    """A norm's weight or a bias: never quantized."""
    vector = weights[name]
    assert isinstance(vector, mx.array)
    return vector


def _has_experts(weights: Mapping[str, Weight]) -> bool:
    return "mlp.gate.weight" in weights


def _packing(w: Weight) -> tuple[int, int, str] | None:
    return (w.bits, w.group_size, w.mode) if isinstance(w, QuantizedWeights) else None
