"""One layer on the C++ kernels: the arithmetic of a transformer block in a few large operators.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of a dozen operators each loses more time that way than its attention takes.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from tiny_llm_lab.native import reads
from tiny_llm_lab.types import QuantizedWeights, Weight

from .paged_attention import LayerCache, PagedLayer

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

    They read dense matrices, and packed ones of 4 or 8 bits in groups of 32, 64 or 128; those that share
    an input (q, k and v; gate and up) must be packed alike.
    """
    packings = [{_packing(weights[f"{name}.weight"]) for name in names} for names in _TOGETHER]
    return all(len(kinds) == 1 and all(kind is None or reads(*kind) for kind in kinds) for kinds in packings)


def fused_layer(
    native: Any,
    layer: "QwenTransformerBlock",
    x: mx.array,
    offset: int | list[int] = 0,
    cache: LayerCache | None = None,
    keep: int | None = None,
    rows: Sequence[int] | None = None,
) -> mx.array:
    """What `layer` makes of x [B, L, E] with a causal mask -> [B, keep, E], by the operators of `native`.

    Heads, attention, output projection, residual and norm, feed-forward with its residual: five operators
    besides the first norm. A row of a batch sees its own cache's offset tokens, so no mask is needed.
    With `rows` (from day 3.2 on) only these rows go on, [len(rows), keep, E].
    """
    attention, length = layer.self_attn, x.shape[1]
    start = 0 if keep is None else max(0, length - keep)
    q, k, v = _heads(native, attention, layer.input_layernorm(x), offset, start, rows)
    scale = attention.config.head_dim**-0.5
    if isinstance(cache, PagedLayer):
        out = cache.attend(q, k, v, scale, rows)
    else:
        if cache is not None:
            k, v = cache.update_and_fetch(k, v)
        stored = length if cache is None else cache.offset
        if rows is not None and not isinstance(stored, int):
            stored = [stored[row] for row in rows]
        out = native.attention(q, _picked(k, rows), _picked(v, rows), stored, True, scale, True)
    out = native.linear(out, [attention.weights["o_proj.weight"]])[0]
    norm, mlp = layer.post_attention_layernorm, layer.mlp
    asked = _picked(x, rows)
    x, normed = native.rms_norm(asked[:, start:] if start else asked, norm.weight, norm.eps, out)
    return cast(mx.array, native.mlp(normed, mlp.w_gate, mlp.w_up, mlp.w_down, x))


def _heads(
    native: Any, attention: Any, x: mx.array, offset: int | list[int], start: int, rows: Sequence[int] | None
) -> list[mx.array]:
    """Queries [len(rows) or B, H, L - start, D], keys and values [B, G, L, D]."""
    w, rope, q_norm, k_norm = attention.weights, attention.rope, attention.q_norm, attention.k_norm
    names = ("q_proj", "k_proj", "v_proj")
    matrices, biases = [w[f"{name}.weight"] for name in names], [w.get(f"{name}.bias") for name in names]
    if start == 0 and rows is None:
        has_norms = q_norm is not None and k_norm is not None
        norms = (q_norm.weight, k_norm.weight, q_norm.eps) if has_norms else (None, None, 0.0)
        tables = (rope.cos, rope.sin, rope.traditional)
        return cast(list[mx.array], native.heads(x, matrices, biases, *norms, *tables, offset))
    dim = attention.config.head_dim
    last = offset + start if isinstance(offset, int) else [row + start for row in offset]
    if rows is not None and not isinstance(last, int):
        last = [last[row] for row in rows]

    def split(y: mx.array) -> mx.array:
        return y.reshape(*y.shape[:2], y.shape[2] // dim, dim)

    def place(y: mx.array, norm: Any, at: int | list[int]) -> mx.array:
        # Norm and rotation in one go, as in `heads`: a rounding in between would tell these rows apart.
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        turned = native.rope(split(y), at, rope.cos, rope.sin, rope.traditional, weight, eps)
        return cast(mx.array, turned).transpose(0, 2, 1, 3)

    q = native.linear(_picked(x, rows)[:, start:], matrices[:1], biases[:1])[0]
    k, v = native.linear(x, matrices[1:], biases[1:])
    return [place(q, q_norm, last), place(k, k_norm, offset), split(v).transpose(0, 2, 1, 3)]


def _picked(x: mx.array, rows: Sequence[int] | None) -> mx.array:
    """These rows of x, or all."""
    return x if rows is None else x[mx.array(list(rows), mx.int32)]


def _packing(w: Weight) -> tuple[int, int] | None:
    return (w.bits, w.group_size) if isinstance(w, QuantizedWeights) else None
