"""Token embedding. In small Qwen models it is also the output head."""

import mlx.core as mx


class Embedding:
    """A table with one row of `embedding_dim` numbers for each of `vocab_size` tokens."""

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array) -> None:
        """weight is [vocab_size, embedding_dim]."""
        raise NotImplementedError("task 1.5.1")

    def __call__(self, tokens: mx.array) -> mx.array:
        """Returns the rows of `tokens`: [B, L] integers -> [B, L, embedding_dim]."""
        raise NotImplementedError("task 1.5.1")

    def as_linear(self, x: mx.array) -> mx.array:
        """Returns the logits of x, as the tied output head: [..., embedding_dim] -> [..., vocab_size]."""
        raise NotImplementedError("task 1.5.1")
