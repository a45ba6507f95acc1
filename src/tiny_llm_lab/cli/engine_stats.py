"""What an engine computed, counted step by step, and said in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiny_llm_lab.types import StepPlan, StepStats

if TYPE_CHECKING:
    from tiny_llm_ref import Engine


class EngineStats:
    """Counts steps, prompt tokens and preemptions, as the `on_step` of an engine."""

    def __init__(self) -> None:
        self.num_steps = self.num_prompt_tokens = self.num_preemptions = 0

    def __call__(self, plan: StepPlan, stats: StepStats) -> None:
        self.num_steps += 1
        self.num_prompt_tokens += stats.num_prompt_tokens
        self.num_preemptions += len(plan.preempted)

    def as_json(self, engine: Engine) -> dict[str, Any]:
        """The counters, together with `engine`'s; a share of nothing is None."""
        cache, spec = engine.core.prefix_cache, engine.core.spec_stats
        asked = cache.num_query_tokens if cache is not None else 0
        return {
            "num_steps": self.num_steps,
            "num_computed_prompt_tokens": self.num_prompt_tokens,
            "prefix_hit_rate": cache.num_hit_tokens / asked if cache is not None and asked else None,
            "num_preemptions": self.num_preemptions,
            "acceptance_rate": None if spec is None else spec.acceptance_rate,
        }

    def line(self, engine: Engine) -> str:
        """The same for people."""
        values = self.as_json(engine)
        shares = (values["prefix_hit_rate"], values["acceptance_rate"])
        hits, accepted = map(_percent, shares, (engine.core.prefix_cache, engine.core.spec_stats))
        return (
            f"{self.num_steps} steps · {self.num_prompt_tokens} prompt tokens computed · "
            f"prefix cache hit rate {hits} · preemptions {self.num_preemptions} · acceptance rate {accepted}"
        )


def _percent(share: float | None, source: object) -> str:
    if share is None:
        return "off" if source is None else "-"
    return f"{share:.1%}"
