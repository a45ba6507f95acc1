"""Small simulations: engines whose seconds can be added up by hand, and runs to vary."""

from dataclasses import dataclass
from typing import Any, Final

from tiny_llm_lab.measure.simulate.run import EngineStats, SimulatedEngine
from tiny_llm_lab.measure.simulate.setting import Calibrated, Setting, StepCost
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.solution import load_scheduling

# Steps as some small machine could take them.
MEASURED: Final = Calibrated(16, (0.01, 0.0, 0.0, 1e-6), (0.001, 1e-3, 1e-7, 0.0))


@dataclass(frozen=True)
class PerToken:
    """A second per token: seconds are tokens, and sums are exact."""

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        return float(num_tokens)


def by_hand(**options: Any) -> Setting:
    """Four requests at a time and steps of 8 tokens; `options` are fields of a Setting that change it."""
    small: dict[str, Any] = {
        "budget": "8",
        "max_num_seqs": 4,
        "max_model_len": 64,
        "kv_tokens": 128,
        "block_size": 4,
    }
    return Setting(**(small | options))


def run(requests: list[Request], cost: StepCost | None = None, **options: Any) -> EngineStats:
    """What the engine of by_hand(**options) does; without a `cost`, a second per token."""
    return SimulatedEngine(load_scheduling("ref"), by_hand(**options), cost or PerToken()).replay(requests)


def gaps_of(stats: EngineStats) -> list[float]:
    """All gaps between tokens, sorted."""
    return sorted(gap for each in stats.finished for gap in each.timing.itl_s)


def forty_chats(**options: Any) -> Setting:
    """Forty requests of the lengths of chat; `options` change it."""
    small: dict[str, Any] = {
        "requests": 40, "rate": 1.0, "lengths": "chat", "budget": "64", "max_budget": 64, "max_num_seqs": 6,
        "max_model_len": 400, "kv_tokens": 3200, "safety": 1.2,
    }  # fmt: skip
    return Setting(**(small | options))
