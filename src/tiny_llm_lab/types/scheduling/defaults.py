"""What an engine calls in place of an option that was left out, so that it need not check each option."""

from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx

from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.scheduling.engine import StepPlan, StepStats


def is_async_scheduling(chosen: bool | None) -> bool:
    """Returns `chosen`; for None, whether MLX uses a GPU, which would idle while Python reads tokens."""
    return mx.default_device() == mx.gpu if chosen is None else chosen


class NoSpeculation:
    """No request has a draft. The `Speculation` of task 3.9.6 has the same methods."""

    stats: None = None

    def draft(self, requests: Iterable[object], scheduler: object) -> None:
        """Before a step is planned: the running `requests` may get drafts, and blocks for them."""

    def skips(self, requests: Sequence[object]) -> bool:
        """Whether none of these requests would get a draft in the next step."""
        return True

    def token_budget(self, budget: int | None, scheduler: object) -> int | None:
        """Then: returns the step's token budget, if `budget` is what others say."""
        return budget

    def observe_step(self, plan: StepPlan, sampled: Iterable[Sequence[int]], seconds: float) -> None:
        """After a step is read: its time may be learned. `sampled` has the tokens of each request."""

    def accepted(self, request: object, sampled: Sequence[int]) -> Sequence[int]:
        """Then, for each of these requests: returns which of its `sampled` tokens are certain."""
        return sampled

    def follow(self, computed: Sequence[tuple[object, Slice]], step_s: float) -> float:
        """After a step is committed: what it computed of each request may be read. Returns seconds."""
        return 0.0

    def forget(self, request_id: str) -> None:
        """When a request leaves: forget it."""


class NoText:
    """The text of an answer without `SamplingParams.detokenize`. `TextStream` has the same methods."""

    text = ""
    stopped = False

    def push(self, token: int, may_stop: bool = True) -> str:
        """Returns no text."""
        return ""

    def finish(self) -> str:
        """Returns no text."""
        return ""


class FixedBudget:
    """Every step has max_num_batched_tokens. The `BudgetController` of task 3.8.3 has the same methods."""

    def token_budget(
        self, now_s: float, scheduler: object, last_token_s: Callable[[str], float]
    ) -> int | None:
        """Before a step is planned: returns the `token_budget` of `Scheduler.schedule`."""
        return None

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """After a step is read: what it computed, and the seconds since its planning started."""


def ignore_step(plan: StepPlan, stats: StepStats) -> None:
    """An `OnStep` that does nothing."""
