"""A scheduler whose plans are recorded, for tests that begin to look when requests run already."""

from typing import Any

from tiny_llm_lab.types import StepPlan


class ScheduleProbe:
    """Records every plan of `schedule`; those that are made ahead of a step are not seen."""

    def __init__(self, scheduler: Any) -> None:
        self.plans: list[StepPlan] = []
        schedule = scheduler.schedule

        def recorded(*args: Any, **kwargs: Any) -> StepPlan:
            self.plans.append(schedule(*args, **kwargs))
            return self.plans[-1]

        scheduler.schedule = recorded

    @property
    def steps(self) -> list[dict[str, int]]:
        """{request id: tokens} of every step."""
        return [dict(plan.num_scheduled_tokens) for plan in self.plans]

    @property
    def preempted(self) -> list[str]:
        """The ids of preempted requests, one for each preemption."""
        return [request_id for plan in self.plans for request_id in plan.preempted]
