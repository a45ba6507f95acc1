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
    """softmax(query key^T * scale + mask) value (arXiv 1706.03762, eq. 1).

    query [..., L, D], key and value [..., S, D], mask broadcastable to [..., L, S] and added to the
    scores -> [..., L, D]. `scale` None means 1 / sqrt(D).
    """
    raise NotImplementedError("task 1.1.2")


class SimpleMultiHeadAttention:
    """Multi-head attention with as many kv heads as query heads (arXiv 1706.03762, section 3.2.2)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
    ) -> None:
        """wq, wk, wv [H * D, E] and wo [E, H * D], with E = hidden_size and D = E / num_heads."""
        raise NotImplementedError("task 1.1.3")

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        """query [B, L, E], key and value [B, S, E], mask broadcastable to [B, H, L, S] -> [B, L, E]."""
        raise NotImplementedError("task 1.1.3")


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """An additive [L, S] mask for L new tokens at the end of S stored ones: 0 may be seen, -inf not.

    Bottom-right aligned: the last row sees all S tokens, the row before it one fewer.
    Raises ValueError when S < L.
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
    `mask` is None, "causal" (bottom-right aligned) or an array broadcastable to [B, H, L, S]: added
    to the scores, or, if boolean, True where a token may be seen. Raises ValueError unless G divides H,
    and for any other string.
    """
    raise NotImplementedError("task 1.3.2")
