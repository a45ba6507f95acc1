"""How rows of logits are drawn from: what the operator `draw` is told about each."""

from dataclasses import dataclass

import numpy as np

from tiny_llm_lab.types.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class LogitEdits:
    """Changes of E logits of one row, each a float32 array [E] but for `tokens`, which are uint32.

    Of each token the bias is added. Then a positive logit is divided by the factor, and another one is
    multiplied by it. Then the loss is subtracted. No token occurs twice.
    """

    tokens: np.ndarray
    biases: np.ndarray
    factors: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True, eq=False)
class RowChanges:
    """What changes a row of logits before a token is drawn from it: first `edits`, then `allowed`."""

    edits: LogitEdits | None = None
    # Words of 32 bits [ceil(V / 32)] uint32, the lowest bit first: which tokens may be drawn. None: all.
    allowed: np.ndarray | None = None


UNCHANGED = RowChanges()


@dataclass(frozen=True, eq=False)
class DrawRow:
    """A row of logits to draw from, with temperature, top_k, top_p and min_p of `sampling`."""

    sampling: SamplingParams
    key: int  # of the random numbers, 0 to 2**64 - 1, see `noise`
    changes: RowChanges = UNCHANGED
