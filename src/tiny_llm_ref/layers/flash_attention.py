"""Attention that never holds a whole row of scores (FlashAttention-2, Dao 2023, arXiv 2307.08691)."""

import math

import mlx.core as mx

from .attention import Mask

# Stored tokens in one block.
_BLOCK = 64


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
) -> mx.array:
    """Returns what `scaled_dot_product_attention_grouped` returns, computed one block of keys at a time.

    query [B, H, L, D], key and value [B, G, S, D] -> [B, H, L, D] in the dtype of `query`. `mask` is None,
    "causal" (aligned at the bottom right) or an array that broadcasts to [B, H, L, S], boolean or added to
    the scores. Scores, and any array made from the mask, are at most [B, H, L, 64] at a time (algorithm 1:
    a running maximum, a running sum, and an output that is rescaled when the maximum changes). Accumulates
    in float32. Every row must see at least one token. Raises ValueError unless G divides H, and for any
    other string.
    """
    batch, heads, _, dim = query.shape
    groups, stored = key.shape[1], key.shape[2]
    if heads % groups:
        raise ValueError(f"{groups} kv heads do not divide {heads} query heads")
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'{mask!r} is not a mask: pass None, "causal" or an array')
    factor = 1 / math.sqrt(dim) if scale is None else scale
    rows = (query.astype(mx.float32) * factor).reshape(batch, groups, -1, dim)
    # The paper's names: m is the running maximum, l the running sum, and alpha rescales the output so far.
    m = mx.full((*rows.shape[:3], 1), -mx.inf)
    l, out = mx.zeros(m.shape), mx.zeros(rows.shape)  # noqa: E741
    for first in range(0, stored, _BLOCK):
        block = slice(first, first + _BLOCK)
        scores = rows @ mx.swapaxes(key[:, :, block].astype(mx.float32), -1, -2)
        if mask is not None:
            scores = scores + _additive(mask, query, stored, block).reshape(scores.shape)
        new_m = mx.maximum(m, mx.max(scores, axis=-1, keepdims=True))
        # Until a row has seen a token its maximum is -inf, and -inf minus -inf is not a number.
        finite_m = mx.where(new_m == -mx.inf, 0.0, new_m)
        p, alpha = mx.exp(scores - finite_m), mx.exp(m - finite_m)
        l = l * alpha + mx.sum(p, axis=-1, keepdims=True)  # noqa: E741
        out = out * alpha + p @ value[:, :, block].astype(mx.float32)
        m = new_m
    return (out / l).reshape(query.shape).astype(query.dtype)


def _additive(mask: Mask, query: mx.array, stored: int, block: slice) -> mx.array:
    """Returns the additive float32 mask of one block of stored tokens, [B, H, L, S of the block]."""
    batch, heads, length, _ = query.shape
    columns = mx.arange(*block.indices(stored))
    if isinstance(mask, mx.array):
        part = mx.broadcast_to(mask, (batch, heads, length, stored))[..., block]
    else:
        part = columns <= mx.arange(stored - length, stored)[:, None]
    if part.dtype == mx.bool_:
        part = mx.where(part, 0.0, -mx.inf)
    return mx.broadcast_to(part.astype(mx.float32), (batch, heads, length, columns.size))
