"""What an engine calls in the place of an option that was left out, so that it need not ask for each."""

from collections.abc import Callable, Iterable, Sequence

from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.scheduling.engine import StepPlan, StepStats


class NoSpeculation:
    """No request has a draft; the `Speculation` of task 3.9.6 has the same methods."""

    stats: None = None

    def draft(self, requests: Iterable[object]) -> None:
        """Before a step is planned: the running `requests` may get drafts."""

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], end_s: float) -> None:
        """When a step was read, `sampled` being the tokens of each request: its time may be learnt."""

    def accepted(self, request: object, sampled: Sequence[int]) -> Sequence[int]:
        """Then, for each of these requests: those of its `sampled` tokens that are certain."""
        return sampled

    def forget(self, request_id: str) -> None:
        """When a request leaves: what is remembered of it is dropped."""


class FixedBudget:
    """Every step has max_num_batched_tokens; the `BudgetController` of task 3.8.3 has the same methods."""

    def token_budget(
        self, now_s: float, scheduler: object, last_token_s: Callable[[str], float]
    ) -> int | None:
        """Before a step is planned: the `token_budget` of `Scheduler.schedule`."""
        return None

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """When a step was read: what it computed, and the seconds since its plan was begun."""


class AllDrafts:
    """A `DraftGate` that lets every draft be verified."""

    def begin_step(self, num_requests: int) -> None:
        pass

    def wants(self, request_id: str, num_draft_tokens: int) -> bool:
        return True

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        pass

    def observe_step(self, num_rows: int, seconds: float) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass


def ignore_step(plan: StepPlan, stats: StepStats) -> None:
    """An `OnStep` that does nothing."""
