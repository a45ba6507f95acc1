"""One simulated run: a setting's traffic, replayed on a simulated engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tiny_llm_lab.measure.simulate.cost import StepCost
from tiny_llm_lab.measure.simulate.engine import EngineStats, SimulatedEngine
from tiny_llm_lab.measure.simulate.outcome import Outcome, outcome
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.solution import Scheduling
from tiny_llm_lab.runtime.steps.shapes import StepGrid, work_of
from tiny_llm_lab.types import StepSample

if TYPE_CHECKING:
    from tiny_llm_ref import BudgetController

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
