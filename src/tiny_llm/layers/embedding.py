"""Token embedding, which in small Qwen models is the output head as well."""

import mlx.core as mx


class Embedding:
    """A table with one row of `embedding_dim` numbers for each of `vocab_size` tokens."""

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array) -> None:
        """weight [vocab_size, embedding_dim]."""
        raise NotImplementedError("task 1.5.1")

    def __call__(self, tokens: mx.array) -> mx.array:
        """Look up tokens [B, L] integer -> [B, L, embedding_dim]."""
        raise NotImplementedError("task 1.5.1")

    def as_linear(self, x: mx.array) -> mx.array:
        """Score x [..., embedding_dim] against every row -> logits [..., vocab_size] (tied head)."""
        raise NotImplementedError("task 1.5.1")
