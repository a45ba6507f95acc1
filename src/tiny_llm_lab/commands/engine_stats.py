"""What the engine spared and what it did twice: counted beside it, and said in one line."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiny_llm_lab.solution import Engine
from tiny_llm_lab.types import StepPlan


class EngineStats:
    """Counts what an engine computes, from now on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Whichever way a step was planned, it is committed.
        self._commit = engine.scheduler.commit
        engine.scheduler.commit = self._watched
        self.num_steps = self.num_prompt_tokens = self.num_preemptions = 0

    def as_json(self) -> dict[str, Any]:
        """The counters; a share is None where there was nothing to share."""
        cache, spec = self._engine.prefix_cache, self._engine.spec_stats
        asked = cache.num_query_tokens if cache is not None else 0
        return {
            "num_steps": self.num_steps,
            "num_computed_prompt_tokens": self.num_prompt_tokens,
            "prefix_hit_rate": cache.num_hit_tokens / asked if asked else None,
            "num_preemptions": self.num_preemptions,
            "acceptance_rate": None if spec is None else spec.acceptance_rate,
        }

    def line(self) -> str:
        """The same for people."""
        values = self.as_json()
        parts = [
            f"{values['num_steps']} steps",
            f"{values['num_computed_prompt_tokens']} prompt tokens computed",
            f"prefix cache hit rate {_percent(values['prefix_hit_rate'], self._engine.prefix_cache)}",
            f"preemptions {values['num_preemptions']}",
            f"acceptance rate {_percent(values['acceptance_rate'], self._engine.spec_stats)}",
        ]
        return " · ".join(parts)

    def _watched(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        self.num_steps += 1
        self.num_preemptions += len(plan.preempted)
        for request in self._engine.scheduler.running:
            num_new = plan.num_scheduled_tokens.get(request.request_id, 0)
            left = max(0, len(request.prompt_token_ids) - request.num_computed_tokens)
            self.num_prompt_tokens += min(num_new, left)
        self._commit(plan, sampled)


def _percent(share: float | None, source: object) -> str:
    if share is None:
        return "off" if source is None else "-"
    return f"{share:.1%}"
