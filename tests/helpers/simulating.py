"""Small simulations: replicas whose seconds can be added up by hand, and settings to vary."""

from dataclasses import dataclass

import pytest

from tiny_llm_lab.simulate.cluster import Route, replay
from tiny_llm_lab.simulate.cost import Calibrated
from tiny_llm_lab.simulate.ledger import Ledger
from tiny_llm_lab.simulate.machine import Machine
from tiny_llm_lab.simulate.outcome import Slo
from tiny_llm_lab.simulate.setting import Setting
from tiny_llm_lab.simulate.traffic import SimRequest, parse_lengths
from tiny_llm_lab.solution import load_scheduling
from tiny_llm_lab.types import SchedulerConfig


@dataclass(frozen=True)
class PerToken:
    """A second per token: seconds are tokens, and sums are exact."""

    def seconds(self, num_tokens: int, num_attended: int, num_stored: int) -> float:
        return float(num_tokens)


def machine(**options: object) -> Machine:
    """A replica's make: fields of SchedulerConfig and of Machine, a second per token if nothing else."""
    config = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 64} | {
        key: options.pop(key) for key in list(options) if key in SchedulerConfig.__dataclass_fields__
    }
    values = {"num_blocks": 32, "block_size": 4, "cost": PerToken()} | options
    return Machine(load_scheduling("ref"), SchedulerConfig(**config), **values)  # type: ignore[arg-type]


def run(
    requests: list[SimRequest], num_replicas: int = 1, route: Route = "round-robin", **options: object
) -> Ledger:
    """What becomes of `requests` on replicas of machine(**options)."""
    return replay(requests, machine(**options), num_replicas, route, itl_slo_s=5.0)


def counted_schedules(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Watch all schedulers of the reference: the budget of each call of `schedule`, one after the other."""
    scheduler = load_scheduling("ref").Scheduler
    schedule, calls = scheduler.schedule, []  # type: ignore[attr-defined]
    monkeypatch.setattr(
        scheduler, "schedule", lambda self, budget=None: calls.append(budget) or schedule(self, budget)
    )
    return calls


def setting_of(**options: object) -> Setting:
    """Forty requests on a machine of measured steps; fields of SchedulerConfig and of Setting change it."""
    config = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "max_model_len": 400} | {
        key: options.pop(key) for key in list(options) if key in SchedulerConfig.__dataclass_fields__
    }
    values = {
        "num_requests": 40, "rate": 1.0, "burstiness": 1.0, "lengths": parse_lengths("chat"), "seed": 0,
        "batch_share": 0.0, "num_replicas": 1, "route": "round-robin", "budget": 64, "num_blocks": 200,
        "block_size": 16,
        "cost": Calibrated(16, (0.01, 0.0, 0.0, 1e-6), (0.001, 1e-3, 1e-7, 0.0)), "slo": Slo(0.05, 2.0),
        "safety": 1.2, "noise": 0.0, "fast_forward": True,
    } | options  # fmt: skip
    return Setting(config=SchedulerConfig(**config), **values)  # type: ignore[arg-type]
