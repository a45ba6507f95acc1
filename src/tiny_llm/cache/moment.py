"""A step that can be done again: how a state is cut back to some of its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import DeltaRule, DeltaState


@dataclass(frozen=True)
class Moment:
    """A step of one sequence, to be done again up to any of its tokens: the state before, and the inputs.

    This reads no weights but those of the rule, and gives the state to the bit if the rule has one order.
    """

    rule: DeltaRule
    rows: Sequence[mx.array]  # [n, ...]
    before: DeltaState

    def state_after(self, num_tokens: int) -> DeltaState:
        """The state after the first `num_tokens` of the step's tokens."""
        raise NotImplementedError("task 4.4.5")
