"""One simulated run: a setting's traffic, replayed on a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.engine import EngineStats, SimulatedEngine
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.metrics import Slo, Spread, e2e_s, pooled_itl, spread, tpot_s
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.runtime.steps.runner import StepGrid, work_of
from tiny_llm_lab.types import StepSample

if TYPE_CHECKING:
    from tiny_llm_ref import BudgetController


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
