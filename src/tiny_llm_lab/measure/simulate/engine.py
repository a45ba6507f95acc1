"""One engine without a model: the solution's scheduler, step after step, under a virtual clock."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.types import Timing, attention_tokens

if TYPE_CHECKING:
    from tiny_llm_ref import BudgetController, TokenSequence

_TOKEN: Final = (0,)  # a sampled token: the simulation only counts tokens
_NOISE_SEED: Final = 2  # seed and seed + 1 draw arrivals and lengths


@dataclass(frozen=True)
class FinishedRequest:
    """A request with the times of its tokens."""

    request: Request
    timing: Timing
    num_preemptions: int


@dataclass
class EngineStats:
    """What an engine has done; num_tokens counts prompts and recomputed tokens too."""

    finished: list[FinishedRequest] = field(default_factory=list)
    num_steps: int = 0
    num_tokens: int = 0
    busy_s: float = 0.0


@dataclass
class _Unfinished:
    request: Request
    sequence: TokenSequence
    token_s: list[float] = field(default_factory=list)


class SimulatedEngine:
    """`now_s` is the end of the last step, or the arrival that ended an idle time."""

    def __init__(
        self, llm: Scheduling, setting: Setting, cost: StepCost, controller: BudgetController | None = None
    ) -> None:
        """`controller` chooses the budget of every step; None: the scheduler's own limit."""
        self.now_s = 0.0
        self.stats = EngineStats()
        self._llm, self._cost, self._controller = llm, cost, controller
        self._scheduler = llm.Scheduler(
            setting.scheduler(), llm.BlockPool(setting.num_blocks, setting.block_size)
        )
        self._noise, self._rng = setting.noise, random.Random(setting.seed + _NOISE_SEED)
        self._unfinished: dict[str, _Unfinished] = {}

    def replay(self, requests: Sequence[Request]) -> EngineStats:
        """Serve `requests`, in order of arrival, until all have finished; each is taken for the next step."""
        for number, request in enumerate(requests):
            self._run_until(request.arrival_s)
            self.now_s = max(self.now_s, request.arrival_s)
            prompt = [0] * request.prompt_len
            sequence = self._llm.TokenSequence(str(number), prompt, arrival_s=request.arrival_s)
            self._scheduler.add(sequence)
            self._unfinished[sequence.request_id] = _Unfinished(request, sequence)
        self._run_until(math.inf)
        return self.stats

    def _run_until(self, until_s: float) -> None:
        while self._unfinished and self.now_s < until_s:
            self._step()

    def _step(self) -> None:
        plan = self._scheduler.schedule(self._budget())
        num_tokens, attention, kv_read, sampled = plan.total_num_scheduled_tokens, 0, 0, {}
        if num_tokens == 0 and not plan.preempted:
            raise RuntimeError("schedule() planned an empty step although requests wait")
        for request_id, num_new in plan.num_scheduled_tokens.items():
            sequence = self._unfinished[request_id].sequence
            attention += attention_tokens(sequence.num_computed_tokens, num_new)
            kv_read += sequence.num_computed_tokens + num_new
            if sequence.needs_sample(num_new):
                sampled[request_id] = _TOKEN
        seconds = self._seconds(num_tokens, attention, kv_read)
        self.now_s += seconds
        self.stats.busy_s += seconds
        self.stats.num_steps += 1
        self.stats.num_tokens += num_tokens
        self._scheduler.commit(plan, sampled)
        for request_id in sampled:
            unfinished = self._unfinished[request_id]
            unfinished.token_s.append(self.now_s)
            if len(unfinished.token_s) == unfinished.request.max_tokens:
                self._finish(unfinished)

    def _budget(self) -> int | None:
        if self._controller is None:
            return None
        return self._controller.token_budget(self.now_s, self._scheduler, self._last_token_s)

    def _last_token_s(self, request_id: str) -> float:
        return (self._unfinished[request_id].token_s or [math.nan])[-1]

    def _seconds(self, num_tokens: int, attention: int, kv_read: int) -> float:
        """The time of a step, which the controller learns too."""
        seconds = self._cost.seconds(num_tokens, attention, kv_read)
        if self._noise:
            seconds *= self._rng.lognormvariate(0, self._noise)
        if self._controller is not None:
            self._controller.policy.model.record(num_tokens, attention, kv_read, seconds)
        return seconds

    def _finish(self, unfinished: _Unfinished) -> None:
        request, sequence = unfinished.request, unfinished.sequence
        self._scheduler.finish(sequence.request_id)
        del self._unfinished[sequence.request_id]
        timing = Timing(request.arrival_s, tuple(unfinished.token_s))
        self.stats.finished.append(FinishedRequest(request, timing, sequence.num_preemptions))
