"""A step that can be planned before the one in front of it is computed."""

from collections.abc import Sequence

from tiny_llm_lab.types import StepPlan

from .sequence import ScheduledRequest


def step_behind(plan: StepPlan, running: Sequence[ScheduledRequest], num_waiting: int) -> dict[str, int]:
    """The tokens of the step behind `plan`, {request id: 1} in the plan's order; none when it is not certain.

    `running` are the admitted requests, `plan` is computed but not committed yet. What it draws is not known,
    but that everybody takes it next is, when all of `running` are in the plan, just their known tokens are
    computed by it, without a guess, and nobody waits to be admitted.
    """
    raise NotImplementedError("task 3.4.10")
