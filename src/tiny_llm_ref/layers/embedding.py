"""Token embedding. In small Qwen models it is also the output head."""

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights, Weight

from .basics import linear
from .quantize import dequantize_weights


class Embedding:
    """A table with one row of `embedding_dim` numbers for each of `vocab_size` tokens."""

    def __init__(self, vocab_size: int, embedding_dim: int, weight: Weight) -> None:
        """weight is [vocab_size, embedding_dim].

        From task 2.3.1 on: `weight` may be quantized.
        """
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, tokens: mx.array) -> mx.array:
        """Returns the rows of `tokens`: [B, L] integers -> [B, L, embedding_dim]."""
        w = self.weight
        if not isinstance(w, QuantizedWeights):
            return w[tokens]
        flat = tokens.reshape(-1)
        if w.biases is None:
            return w.mapped(lambda part: part[flat]).dequantized().reshape(*tokens.shape, self.embedding_dim)
        rows = dequantize_weights(w.weight[flat], w.scales[flat], w.biases[flat], w.group_size, w.bits)
        return rows.reshape(*tokens.shape, self.embedding_dim)

    def as_linear(self, x: mx.array) -> mx.array:
        """Returns the logits of x, as the tied output head: [..., embedding_dim] -> [..., vocab_size]."""
        return linear(x, self.weight)
