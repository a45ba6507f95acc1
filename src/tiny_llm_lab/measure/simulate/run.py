"""A simulated engine, and one run: a setting's traffic, replayed on it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.measure.simulate.setting import Setting, StepCost
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.metrics import Slo, Spread, e2e_s, pooled_itl, spread, tpot_s
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.runtime.steps.runner import StepGrid, work_of
from tiny_llm_lab.types import StepSample, Timing, attention_tokens

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


@dataclass(frozen=True)
class Outcome:
    """One simulated run. TTFT, ITL (all gaps of all requests), TPOT and E2E as in `metrics`."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    total_s: float
    output_tokens_per_s: float
    num_preemptions: int
    ttft: Spread | None
    itl: Spread | None  # None when no request has a second token
    tpot: Spread | None
    e2e: Spread | None
    requests_per_s: float
    goodput: float  # requests per second inside both SLOs
    attainment: float  # share of the requests inside both SLOs
    utilisation: float  # share of the time that the engine was computing
    num_steps: int
    tokens_per_step: float

    def meets(self, slo: Slo) -> bool:
        """Whether p99 ITL and p99 TTFT are inside the SLO."""
        limits = ((self.ttft, slo.ttft_s), (self.itl, slo.itl_s))
        return all(result is None or result.p99_s <= limit for result, limit in limits)


def outcome(stats: EngineStats, slo: Slo) -> Outcome:
    """The numbers of a run in which at least one request finished."""
    timings = [each.timing for each in stats.finished]
    first_s, last_s = min(each.arrival_s for each in timings), max(each.token_s[-1] for each in timings)
    total_s, num_good = last_s - first_s, sum(map(slo.holds, timings))
    num_output_tokens = sum(each.request.max_tokens for each in stats.finished)
    return Outcome(
        num_requests=len(timings),
        num_prompt_tokens=sum(each.request.prompt_len for each in stats.finished),
        num_output_tokens=num_output_tokens,
        total_s=total_s,
        output_tokens_per_s=num_output_tokens / total_s,
        num_preemptions=sum(each.num_preemptions for each in stats.finished),
        ttft=spread(timing.ttft_s for timing in timings),
        itl=spread(pooled_itl(timings)),
        tpot=spread(map(tpot_s, timings)),
        e2e=spread(map(e2e_s, timings)),
        requests_per_s=len(timings) / total_s,
        goodput=num_good / total_s,
        attainment=num_good / len(timings),
        utilisation=stats.busy_s / total_s,
        num_steps=stats.num_steps,
        tokens_per_step=stats.num_tokens / stats.num_steps,
    )


_CALIBRATION_STEPS: Final = StepGrid(
    stored=(0, 512, 2048, 8192),
    decodes=(1, 4, 16, 48),
    chunks=(16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048),
    mixed=tuple((count, new) for count in (1, 4, 16, 48) for new in (64, 256, 1024)),
)


def simulate(llm: Scheduling, setting: Setting, cost: StepCost) -> Outcome:
    """Replay the requests of `setting` with the scheduler of `llm`."""
    return outcome(replay(llm, setting, cost), setting.slo)


def replay(llm: Scheduling, setting: Setting, cost: StepCost) -> EngineStats:
    """The same, request by request."""
    controller = _controller(llm, setting, cost) if setting.fixed_budget is None else None
    return SimulatedEngine(llm, setting, cost, controller).replay(setting.traffic())


def _controller(llm: Scheduling, setting: Setting, cost: StepCost) -> BudgetController:
    """Chooses budgets with a model fitted to steps as a calibration would measure them."""
    works = [work_of(step) for step in _CALIBRATION_STEPS.steps()]
    model = llm.StepTimeModel([StepSample(*work, cost.seconds(*work)) for work in works])
    slo = setting.slo
    return llm.BudgetController(llm.LatencyPolicy(model, slo.itl_s, slo.ttft_s, safety=setting.safety))
