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
    counts = plan.num_scheduled_tokens
    is_certain = num_waiting == 0 and len(counts) == len(running)
    for request in running:
        num_computed = request.num_computed_tokens + counts.get(request.request_id, 0)
        is_certain &= num_computed == request.num_tokens
    return dict.fromkeys(counts, 1) if is_certain else {}
