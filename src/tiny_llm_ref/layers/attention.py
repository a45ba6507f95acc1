"""Attention: from one head to grouped query heads (Vaswani et al. 2017; GQA: arXiv 2305.13245)."""

import math
from typing import Literal

import mlx.core as mx

from .basics import linear, softmax

Mask = mx.array | Literal["causal"] | None


def scaled_dot_product_attention_simple(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | None = None,
) -> mx.array:
    """Returns softmax(query key^T * scale + mask) value, [..., L, D] (arXiv 1706.03762, eq. 1).

    query is [..., L, D], key and value are [..., S, D]. `scale` None means 1 / sqrt(D). `mask` broadcasts
    to [..., L, S] and is added to the scores.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ mx.swapaxes(key, -1, -2)
    if mask is not None:
        scores = scores + mask
    return softmax(scores) @ value


class SimpleMultiHeadAttention:
    """Multi-head attention; every query head has its own kv head (arXiv 1706.03762, section 3.2.2)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
    ) -> None:
        """wq, wk, wv are [H * D, E] and wo is [E, H * D], with E = hidden_size and D = E / num_heads."""
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        """query [B, L, E], key and value [B, S, E] -> [B, L, E]; `mask` broadcasts to [B, H, L, S]."""
        q = self._heads(linear(query, self.wq))
        k = self._heads(linear(key, self.wk))
        v = self._heads(linear(value, self.wv))
        out = scaled_dot_product_attention_simple(q, k, v, mask=mask)
        batch, _, length, _ = out.shape
        return linear(out.transpose(0, 2, 1, 3).reshape(batch, length, -1), self.wo)

    def _heads(self, x: mx.array) -> mx.array:
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """Returns the additive [L, S] mask of the last L of S stored tokens: 0 where visible, else -inf.

    The mask is aligned at the bottom right: the last row sees all S tokens, the row above it one fewer.
    Raises ValueError if S < L.
    """
    if S < L:
        raise ValueError(f"{L} new tokens cannot be among {S} stored ones")
    visible = mx.arange(S) <= mx.arange(S - L, S)[:, None]
    return mx.where(visible, 0.0, -mx.inf).astype(dtype)


def scaled_dot_product_attention_grouped(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
) -> mx.array:
    """Attention in which H / G consecutive query heads share one kv head (arXiv 2305.13245).

    query [B, H, L, D], key and value [B, G, S, D] -> [B, H, L, D]; head h reads kv head h // (H / G).
    `mask` is None, "causal" (aligned at the bottom right) or an array that broadcasts to [B, H, L, S]. A
    boolean array is True where a token is visible; any other array is added to the scores. Raises
    ValueError unless G divides H, and for any other string.
    """
    batch, heads, length, dim = query.shape
    groups, stored = key.shape[1], key.shape[2]
    if heads % groups:
        raise ValueError(f"{groups} kv heads do not divide {heads} query heads")
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'{mask!r} is not a mask: pass None, "causal" or an array')
    factor = 1 / math.sqrt(dim) if scale is None else scale
    # The heads of a group become extra rows of one product, so keys and values are never repeated.
    shared = heads // groups * length
    rows = (query * factor).reshape(batch, groups, shared, dim)
    scores = (rows @ mx.swapaxes(key, -1, -2)).reshape(batch, heads, length, stored)
    weights = softmax(_masked(scores, mask))
    return (weights.reshape(batch, groups, shared, stored) @ value).reshape(query.shape)


def _masked(scores: mx.array, mask: Mask) -> mx.array:
    if mask is None:
        return scores
    if isinstance(mask, str):
        return scores + causal_mask(scores.shape[-2], scores.shape[-1], scores.dtype)
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, -mx.inf)
    return scores + mask
