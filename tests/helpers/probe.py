"""A scheduler whose plans are recorded, for tests that begin to look when requests run already."""

from typing import Any

from tiny_llm_lab.trace import PlanRecorder
from tiny_llm_lab.types import StepPlan


class ScheduleProbe(PlanRecorder):
    """Records every plan of `schedule`; those that are made ahead of a step are not seen."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        schedule = scheduler.schedule

        def recorded(*args: Any, **kwargs: Any) -> StepPlan:
            plan: StepPlan = schedule(*args, **kwargs)
            self(plan)
            return plan

        scheduler.schedule = recorded
