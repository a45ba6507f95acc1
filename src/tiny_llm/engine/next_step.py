"""A step that can be planned before the one in front of it is computed."""

from collections.abc import Sequence

from tiny_llm_lab.types import StepPlan

from .sequence import TokenSequence


def plan_next_step(plan: StepPlan, running: Sequence[TokenSequence], num_waiting: int) -> dict[str, int]:
    """The tokens of the step after `plan`, {request id: 1} in the plan's order; empty when not certain.

    `running` are the admitted sequences; `plan` is launched but not committed. Its tokens are unknown, but
    the next step is certain if every running sequence is in `plan`, finishes its known tokens there without
    a draft, and none waits to be admitted.
    """
    raise NotImplementedError("task 3.6.8")
