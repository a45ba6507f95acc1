"""How rows of logits are drawn from: what the operator `draw` is told about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiny_llm_lab.types.sampling import SamplingParams

if TYPE_CHECKING:  # the program's list of commands is printed without NumPy
    import numpy as np


@dataclass(frozen=True, eq=False)
class LogitEdits:
    """Changes of the logits of E tokens: `tokens` [E] uint32, and `changes` [E, 3] float32.

    A change is a bias, a factor and a loss. The bias is added. Then a positive logit is divided by the
    factor, and another one is multiplied by it. Then the loss is subtracted. No token occurs twice.
    """

    tokens: np.ndarray
    changes: np.ndarray


class EditTable:
    """Changes of tokens that are set one by one, and given to an operator many times."""

    def __init__(self) -> None:
        import numpy as np

        self._places: dict[int, int] = {}  # of each token in the arrays
        self._tokens, self._changes = np.zeros(64, np.uint32), np.zeros((64, 3), np.float32)

    def set(self, token: int, bias: float, factor: float, loss: float) -> None:
        """Change a token's logit as `LogitEdits` says; (0, 1, 0) leaves it as it is."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            tokens, changes = self._tokens, self._changes
            self._tokens, self._changes = tokens.repeat(2), changes.repeat(2, axis=0)
            self._tokens[:place], self._changes[:place] = tokens, changes
        self._tokens[place], self._changes[place] = token, (bias, factor, loss)

    def edits(self, vocab_size: int) -> LogitEdits:
        """Returns a copy of the changes of all tokens below `vocab_size`."""
        tokens, changes = (part[: len(self._places)].copy() for part in (self._tokens, self._changes))
        is_inside = tokens < vocab_size
        # Choosing rows takes ten times as long as copying them.
        return LogitEdits(
            *((tokens, changes) if is_inside.all() else (tokens[is_inside], changes[is_inside]))
        )


@dataclass(frozen=True, eq=False)
class RowChanges:
    """What changes a row of logits [V] before a token is drawn from it: first `edits`, then `allowed`."""

    edits: LogitEdits | None = None
    # Bits [ceil(V / 32)] uint32, the lowest first: which tokens may be drawn. None: all.
    allowed: np.ndarray | None = None

    def then(self, after: RowChanges) -> RowChanges:
        """Returns both changes as one; at most one of them has edits."""
        if self is UNCHANGED:
            return after
        assert self.edits is None or after.edits is None
        masks = [each.allowed for each in (self, after) if each.allowed is not None]
        allowed = masks[0] & masks[1] if len(masks) == 2 else masks[0] if masks else None
        return RowChanges(self.edits or after.edits, allowed)


UNCHANGED = RowChanges()


@dataclass(frozen=True, eq=False)
class DrawRow:
    """A row of logits to draw from, with temperature, top_k, top_p and min_p of `sampling`."""

    sampling: SamplingParams
    key: int  # of the random numbers, 0 to 2**64 - 1, see `noise`
    changes: RowChanges = UNCHANGED
