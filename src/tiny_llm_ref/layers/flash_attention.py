"""Attention that never holds a whole row of scores (FlashAttention-2, Dao 2023, arXiv 2307.08691)."""

import math

import mlx.core as mx

from tiny_llm_lab.native import kernels

from .attention import Mask

# Stored tokens that are looked at together.
_BLOCK = 64


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
) -> mx.array:
    """The same result as `scaled_dot_product_attention_grouped`, one block of keys at a time.

    query [B, H, L, D], key and value [B, G, S, D] -> [B, H, L, D] in the dtype of `query`; `mask` is
    None, "causal" (bottom-right aligned), or an array broadcastable to [B, H, L, S], added to the scores
    or boolean. Scores, and what is made of the mask, exist for [B, H, L, 64] at a time (algorithm 1: a
    running maximum, a running sum and an output that is rescaled when the maximum moves). Accumulates in
    float32. Every row must see at least one token. Raises ValueError unless G divides H.
    """
    batch, heads, _, dim = query.shape
    groups, stored = key.shape[1], key.shape[2]
    if heads % groups:
        raise ValueError(f"{groups} kv heads do not divide {heads} query heads")
    factor = 1 / math.sqrt(dim) if scale is None else scale
    if not isinstance(mask, mx.array) and (native := kernels(__package__)):
        return native.attention(query, key, value, stored, mask == "causal", factor)
    rows = (query.astype(mx.float32) * factor).reshape(batch, groups, -1, dim)
    peak = mx.full((*rows.shape[:3], 1), -mx.inf)
    total, out = mx.zeros(peak.shape), mx.zeros(rows.shape)
    for first in range(0, stored, _BLOCK):
        block = slice(first, first + _BLOCK)
        scores = rows @ mx.swapaxes(key[:, :, block].astype(mx.float32), -1, -2)
        if mask is not None:
            scores = scores + _additive(mask, query, stored, block).reshape(scores.shape)
        new_peak = mx.maximum(peak, mx.max(scores, axis=-1, keepdims=True))
        # While a row has seen nothing its maximum is -inf, and -inf minus -inf is not a number.
        anchor = mx.where(new_peak == -mx.inf, 0.0, new_peak)
        weights, shrink = mx.exp(scores - anchor), mx.exp(peak - anchor)
        total = total * shrink + mx.sum(weights, axis=-1, keepdims=True)
        out = out * shrink + weights @ value[:, :, block].astype(mx.float32)
        peak = new_peak
    return (out / total).reshape(query.shape).astype(query.dtype)


def _additive(mask: Mask, query: mx.array, stored: int, block: slice) -> mx.array:
    """The mask of one block of stored tokens as float32 numbers to add, [B, H, L, S of the block]."""
    batch, heads, length, _ = query.shape
    columns = mx.arange(*block.indices(stored))
    if isinstance(mask, mx.array):
        part = mx.broadcast_to(mask, (batch, heads, length, stored))[..., block]
    else:
        part = columns <= mx.arange(stored - length, stored)[:, None]
    if part.dtype == mx.bool_:
        part = mx.where(part, 0.0, -mx.inf)
    return mx.broadcast_to(part.astype(mx.float32), (batch, heads, length, columns.size))
