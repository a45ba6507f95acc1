"""Attention: from one head to grouped query heads (Vaswani et al. 2017; GQA: arXiv 2305.13245)."""

from typing import Literal

import mlx.core as mx

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
    raise NotImplementedError("task 1.1.2")


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
        raise NotImplementedError("task 1.1.3")

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        """query [B, L, E], key and value [B, S, E] -> [B, L, E]; `mask` broadcasts to [B, H, L, S]."""
        raise NotImplementedError("task 1.1.3")


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """Returns the additive [L, S] mask of the last L of S stored tokens: 0 where visible, else -inf.

    The mask is aligned at the bottom right: the last row sees all S tokens, the row above it one fewer.
    Raises ValueError if S < L.
    """
    raise NotImplementedError("task 1.3.1")


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
    raise NotImplementedError("task 1.3.2")
