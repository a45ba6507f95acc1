"""The settings of n draws as arrays: what the operator `draw` of every set is given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiny_llm_lab.types import DrawRow, LogitEdits
from tiny_llm_lab.types.computing.noise import key_words

_NO_EDITS = LogitEdits(np.zeros(0, np.uint32), np.zeros((0, 3), np.float32))


@dataclass(frozen=True)
class DrawTable:
    """Settings of n rows of V logits, E edits of them, and M masks."""

    settings: np.ndarray  # [n, 3] float32: temperature, top_p, min_p
    top_k: np.ndarray  # [n] uint32, 0 = off
    words: np.ndarray  # [n, 2] uint32: the mixed keys
    edit_starts: list[int]  # row r has the edits from edit_starts[r] to edit_starts[r + 1] - 1
    edited: np.ndarray  # [E] uint32: tokens
    edits: np.ndarray  # [E, 3] float32: bias, factor, loss
    masks: list[int]  # [n]: which row of `allowed` is row r's, -1 for none
    allowed: np.ndarray  # [M, ceil(V / 32)] uint32

    @classmethod
    def of(cls, rows: Sequence[DrawRow], vocab_size: int) -> "DrawTable":
        """Raises ValueError for an edit of a token outside the vocabulary."""
        draws = [row.sampling for row in rows]
        edits = [row.changes.edits or _NO_EDITS for row in rows]
        edited = np.concatenate([each.tokens for each in edits])
        if edited.size and edited.max() >= vocab_size:
            raise ValueError(f"token {edited.max()} is outside a vocabulary of {vocab_size}")
        masks = [row.changes.allowed for row in rows]
        given = [mask for mask in masks if mask is not None]
        numbers = iter(range(len(given)))
        return cls(
            np.array([(s.temperature, s.top_p, s.min_p) for s in draws], np.float32),
            # A huge top_k is off as well.
            np.array([min(s.top_k, vocab_size) for s in draws], np.uint32),
            key_words([row.key for row in rows]),
            [0, *np.cumsum([len(each.tokens) for each in edits]).tolist()],
            edited,
            np.concatenate([each.changes for each in edits]),
            [-1 if mask is None else next(numbers) for mask in masks],
            np.stack(given) if given else np.zeros((0, -(-vocab_size // 32)), np.uint32),
        )
