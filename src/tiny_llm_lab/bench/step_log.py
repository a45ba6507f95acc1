"""Watches an engine: what each of its steps computed, and from when to when."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_lab.types import Clock, EngineOutput, StepPlan

from .run import Chunk, Request


@dataclass(frozen=True)
class StepRecord:
    """One committed step, in seconds of the engine's clock."""

    plan: StepPlan
    start_s: float
    end_s: float


class StepLog:
    """The steps of `engine` from now on, in `records`."""

    def __init__(self, engine: Any, clock: Clock = time.perf_counter) -> None:
        """Replaces the engine's `step` and its scheduler's `commit`: an engine calls no one after a step."""
        self.records: list[StepRecord] = []
        self._plans: list[StepPlan] = []
        self._step, self._commit, self._clock = engine.step, engine.scheduler.commit, clock
        engine.step, engine.scheduler.commit = self._watched_step, self._watched_commit

    @property
    def num_computed_tokens(self) -> int:
        """Of all steps, prompts and answers."""
        return sum(record.plan.total_num_scheduled_tokens for record in self.records)

    def chunks(self, requests: Sequence[Request], start_s: float) -> tuple[Chunk, ...]:
        """The prefill chunks of `requests`, whose ids are their places; times from `start_s` on."""
        computed, found = [0] * len(requests), []
        for record in self.records:
            for request_id, num_tokens in record.plan.num_scheduled_tokens.items():
                idx = int(request_id)
                num_new = min(num_tokens, requests[idx].prompt_len - computed[idx])
                if num_new > 0:
                    found.append(Chunk(idx, num_new, record.start_s - start_s, record.end_s - start_s))
                    computed[idx] += num_new
        return tuple(found)

    def _watched_step(self) -> list[EngineOutput]:
        start_s = self._clock()
        outputs: list[EngineOutput] = self._step()
        end_s = self._clock()
        self.records += [StepRecord(plan, start_s, end_s) for plan in self._plans]
        self._plans.clear()
        return outputs

    def _watched_commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        self._plans.append(plan)
        self._commit(plan, sampled)
