"""Small simulations: replicas whose seconds can be added up by hand, and runs to vary."""

from dataclasses import dataclass

import pytest

from tiny_llm_lab.simulate.cluster import replay
from tiny_llm_lab.simulate.cost import Calibrated
from tiny_llm_lab.simulate.outcome import Slo
from tiny_llm_lab.simulate.setting import ReplicaConfig, Route, SimulationConfig
from tiny_llm_lab.simulate.stats import RunStats
from tiny_llm_lab.simulate.traffic import SimRequest, parse_lengths
from tiny_llm_lab.solution import load_scheduling
from tiny_llm_lab.types import SchedulerConfig


@dataclass(frozen=True)
class PerToken:
    """A second per token: seconds are tokens, and sums are exact."""

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        return float(num_tokens)


def replica_config(**options: object) -> ReplicaConfig:
    """Four requests at a time, a second per token; fields of SchedulerConfig and ReplicaConfig change it."""
    scheduler = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 64} | _taken(
        SchedulerConfig, options
    )
    values = {"num_blocks": 32, "block_size": 4, "cost": PerToken()} | options
    return ReplicaConfig(SchedulerConfig(**scheduler), **values)  # type: ignore[arg-type]


def run(
    requests: list[SimRequest], num_replicas: int = 1, route: Route = "round-robin", **options: object
) -> RunStats:
    """What happens to `requests` on replicas of replica_config(**options)."""
    llm = load_scheduling("ref")
    return replay(llm, requests, replica_config(**options), num_replicas, route, itl_slo_s=5.0)


def counted_schedules(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Watch all schedulers of the reference: the budget of each call of `schedule`, one after the other."""
    scheduler = load_scheduling("ref").Scheduler
    schedule, calls = scheduler.schedule, []  # type: ignore[attr-defined]
    monkeypatch.setattr(
        scheduler, "schedule", lambda self, budget=None: calls.append(budget) or schedule(self, budget)
    )
    return calls


def simulation_config(**options: object) -> SimulationConfig:
    """Forty requests on measured steps; fields of the three configurations change it."""
    cost = Calibrated(16, (0.01, 0.0, 0.0, 1e-6), (0.001, 1e-3, 1e-7, 0.0))
    replica = {
        "max_num_batched_tokens": 64, "max_num_seqs": 6, "max_model_len": 400, "num_blocks": 200,
        "block_size": 16, "cost": cost, "seed": 2 + int(options.get("seed", 0)),  # type: ignore[call-overload]
    }  # fmt: skip
    names = {*ReplicaConfig.__dataclass_fields__, *SchedulerConfig.__dataclass_fields__} - {"seed"}
    replica |= {name: options.pop(name) for name in list(options) if name in names}
    values = {
        "num_replicas": 1, "route": "round-robin", "budget": 64, "slo": Slo(0.05, 2.0), "safety": 1.2,
        "num_requests": 40, "rate": 1.0, "burstiness": 1.0, "lengths": parse_lengths("chat"), "seed": 0,
        "batch_share": 0.0,
    } | options  # fmt: skip
    return SimulationConfig(replica_config(**replica), **values)  # type: ignore[arg-type]


def _taken(config: type, options: dict[str, object]) -> dict[str, object]:
    """Remove the fields of `config` from `options`."""
    names = [name for name in options if name in config.__dataclass_fields__]  # type: ignore[attr-defined]
    return {name: options.pop(name) for name in names}
