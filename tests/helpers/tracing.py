"""Counts of a traced run: one {name: tokens} a step."""

from collections.abc import Sequence
from typing import Any

from tiny_llm_lab.measure.trace import TraceRequest, max_trace_len, trace_run
from tiny_llm_lab.types import SchedulerConfig


def traced(
    arrivals: Sequence[tuple[int, str, int, int]], budget: int, threshold: int = 0, **changes: Any
) -> list[dict[str, int]]:
    """A run of (arrival step, name, prompt_len, max_tokens) on the reference's engine."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=min(64, budget),
        max_model_len=max_trace_len(),
        long_prefill_token_threshold=threshold,
        **changes,
    )
    return trace_run([TraceRequest(name, step, *rest) for step, name, *rest in arrivals], config)


def totals(steps: Sequence[dict[str, int]]) -> list[int]:
    return [sum(step.values()) for step in steps]


def steps_to_first_token(steps: Sequence[dict[str, int]], name: str, arrival: int, prompt_len: int) -> int:
    computed = 0
    for number, step in enumerate(steps[arrival:], 1):
        computed += step.get(name, 0)
        if computed >= prompt_len:
            return number
    raise AssertionError(f"{name} never got a token")
