"""The settings of n draws as arrays: what the operator `draw` of every set is given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiny_llm_lab.types import DrawRow, LogitEdits
from tiny_llm_lab.types.computing.noise import key_words

_NO_EDITS = LogitEdits(np.zeros(0, np.uint32), np.zeros((0, 3), np.float32))


@dataclass(frozen=True)
class DrawTable:
    """Settings of n rows of V logits, E edits of them, and M masks. The C++ reads the fields by name."""

    settings: np.ndarray  # [n, 3] float32: temperature, top_p, min_p
    top_k: np.ndarray  # [n] int32, 0 = off
    words: np.ndarray  # [n, 2] uint32: the mixed keys
    edit_starts: np.ndarray  # [n + 1] int32: row r has edits edit_starts[r] to edit_starts[r + 1] - 1
    edited: np.ndarray  # [E] uint32: tokens
    changes: np.ndarray  # [E, 3] float32: bias, factor, loss
    masks: np.ndarray  # [n] int32: which row of `allowed` is row r's, -1 for none
    allowed: np.ndarray  # [M, ceil(V / 32)] uint32

    @classmethod
    def of(cls, rows: Sequence[DrawRow], vocab_size: int) -> "DrawTable":
        """Raises ValueError for an edit of a token outside the vocabulary."""
        draws = [row.sampling for row in rows]
        edits = [row.changes.edits or _NO_EDITS for row in rows]
        edited = np.concatenate([_NO_EDITS.tokens, *(each.tokens for each in edits)])
        if edited.size and edited.max() >= vocab_size:
            raise ValueError(f"token {edited.max()} is outside a vocabulary of {vocab_size}")
        allowed = [mask for row in rows if (mask := row.changes.allowed) is not None]
        has_mask = np.array([row.changes.allowed is not None for row in rows], bool)
        return cls(
            np.array([(s.temperature, s.top_p, s.min_p) for s in draws], np.float32),
            np.array([min(s.top_k, vocab_size) for s in draws], np.int32),
            key_words([row.key for row in rows]),
            np.cumsum([0, *(len(each.tokens) for each in edits)], dtype=np.int32),
            edited,
            np.concatenate([_NO_EDITS.changes, *(each.changes for each in edits)]),
            np.where(has_mask, np.cumsum(has_mask) - 1, -1).astype(np.int32),
            np.stack(allowed) if allowed else np.zeros((0, -(-vocab_size // 32)), np.uint32),
        )
