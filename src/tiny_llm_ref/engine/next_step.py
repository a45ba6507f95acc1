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
    counts = plan.num_scheduled_tokens
    is_certain = num_waiting == 0 and len(counts) == len(running)
    for sequence in running:
        num_computed = sequence.num_computed_tokens + counts.get(sequence.request_id, 0)
        is_certain &= num_computed == sequence.num_tokens
    return dict.fromkeys(counts, 1) if is_certain else {}
