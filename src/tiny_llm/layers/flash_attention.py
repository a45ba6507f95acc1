"""Attention that never holds a whole row of scores (FlashAttention-2, Dao 2023, arXiv 2307.08691)."""

import mlx.core as mx

from .attention import Mask


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
    raise NotImplementedError("task 2.4.1")
