"""The plan of every step of an engine."""

from tiny_llm_lab.types import StepPlan


class PlanRecorder:
    """Keeps the plans that it is called with, as an engine's `on_step` does after every step."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def __call__(self, plan: StepPlan, stats: object = None) -> None:
        self.plans.append(plan)

    @property
    def steps(self) -> list[dict[str, int]]:
        """{request id: tokens} of every step."""
        return [dict(plan.num_scheduled_tokens) for plan in self.plans]

    @property
    def preempted(self) -> list[str]:
        """The ids of preempted requests, one for each preemption."""
        return [request_id for plan in self.plans for request_id in plan.preempted]
