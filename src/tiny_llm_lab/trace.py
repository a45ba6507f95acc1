"""What a scheduler plans, step by step: a probe that changes nothing, and runs of the engine under it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tiny_llm_lab.models.loading import load_checkpoint
from tiny_llm_lab.solution import load_solution
from tiny_llm_lab.types import Checkpoint, Policy, SamplingParams, SchedulerConfig, StepPlan, UserError

_BLOCK_SIZE = 16


@dataclass(frozen=True)
class TraceRequest:
    """One request of a traced run: there before step `arrival_step` is planned, steps counted from 0."""

    name: str
    arrival_step: int
    prompt_len: int
    max_tokens: int
    priority: int = 0  # lower = more urgent, with policy "priority"


class ScheduleProbe:
    """Writes down what `scheduler.schedule` plans; who calls it gets the very same plan."""

    def __init__(self, scheduler: Any) -> None:
        """Watch `scheduler` from now on. Sets plans = []: one per call."""
        self.plans: list[StepPlan] = []
        self._schedule = scheduler.schedule
        scheduler.schedule = self._watched

    def _watched(self, *args: Any, **kwargs: Any) -> StepPlan:
        plan: StepPlan = self._schedule(*args, **kwargs)
        self.plans.append(plan)
        return plan

    @property
    def steps(self) -> list[dict[str, int]]:
        """{request id: tokens} of every call."""
        return [dict(plan.num_scheduled_tokens) for plan in self.plans]

    @property
    def preempted(self) -> list[str]:
        """Who was preempted, once for every time."""
        return [request_id for plan in self.plans for request_id in plan.preempted]


def schedule_trace(
    requests: Sequence[tuple[int, str, int, int]],
    *,
    max_num_batched_tokens: int,
    long_prefill_token_threshold: int = 0,
    max_num_seqs: int = 64,
    policy: Policy = "fcfs",
    solution: str = "ref",
) -> list[dict[str, int]]:
    """The tokens that each step of the engine computes, one {name: tokens} a step, empty ones included.

    `requests` are (arrival_step, name, prompt_len, max_tokens): there before step arrival_step is planned,
    in the order given. Runs the default model on prompts of random tokens to the last token, whatever
    it says: no end of sequence, no prefix cache, blocks enough for all. Raises UserError for bad settings.
    """
    return trace_run(
        [TraceRequest(name, step, length, tokens) for step, name, length, tokens in requests],
        SchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            # More never run at a time: each takes a token of the budget.
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_model_len=max_trace_len(),
            long_prefill_token_threshold=long_prefill_token_threshold,
            policy=policy,
        ),
        solution=solution,
    )


def trace_run(
    requests: Sequence[TraceRequest],
    config: SchedulerConfig,
    *,
    solution: str = "ref",
    checkpoint: Checkpoint | None = None,
) -> list[dict[str, int]]:
    """`schedule_trace` with a whole configuration, and with the default model or that of `checkpoint`."""
    if any(request.arrival_step < 0 for request in requests):
        raise UserError("an arrival step must be 0 or more: steps are counted from 0")
    num_blocks = sum(-(-(request.prompt_len + request.max_tokens) // _BLOCK_SIZE) for request in requests)
    engine = _engine(solution, config, num_blocks, checkpoint)
    probe, draw = ScheduleProbe(engine.scheduler), random.Random(0)
    vocabulary = range(3, min(2000, engine.model.config.vocab_size))
    queue = sorted(requests, key=lambda request: request.arrival_step)
    while queue or engine.has_requests:
        while queue and queue[0].arrival_step <= len(probe.plans):
            request = queue.pop(0)
            prompt = [draw.choice(vocabulary) for _ in range(request.prompt_len)]
            sampling = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True)
            engine.add(request.name, prompt, sampling, priority=request.priority)
        if engine.has_requests:
            engine.step()
        else:
            probe.plans.append(StepPlan({}))
    engine.release()
    return probe.steps


def max_trace_len() -> int:
    """The tokens that the default model has positions for: a traced prompt and its answer."""
    return int(_default()[0].config.max_position_embeddings)


def decode_step_costs(
    threshold: int, *, long_prompt_len: int = 256, max_tokens: int = 16, solution: str = "ref"
) -> list[int]:
    """What a decode has to sit through: all tokens of each step that brings it one, the first excepted.

    The decode answers a prompt of one token with `max_tokens`; a prompt of `long_prompt_len` that wants
    two tokens arrives one step later, and is cut at `threshold` tokens a step (0 = not at all).
    """
    steps = schedule_trace(
        [(0, "decode", 1, max_tokens), (1, "long", long_prompt_len, 2)],
        max_num_batched_tokens=max(long_prompt_len + 1, 64),
        long_prefill_token_threshold=threshold,
        solution=solution,
    )
    return [sum(step.values()) for step in steps if "decode" in step][1:]


def _engine(solution: str, config: SchedulerConfig, num_blocks: int, checkpoint: Checkpoint | None) -> Any:
    package: Any = load_solution(solution)
    if not hasattr(package, "Engine"):
        raise UserError(f"solution {solution!r} has no Engine: choose --solution ref or mine")
    if checkpoint is None:
        checkpoint, models = _default()
        if solution not in models:
            models[solution] = package.build_model(checkpoint)
        model = models[solution]
    else:
        model = package.build_model(checkpoint)
    return package.Engine(
        model,
        checkpoint.tokenizer,
        config,
        num_blocks=max(1, num_blocks),
        block_size=_BLOCK_SIZE,
        enable_prefix_caching=False,
    )


@cache
def _default() -> tuple[Checkpoint, dict[str, Any]]:
    """The default model's checkpoint, and the models made of it by solution."""
    return load_checkpoint("default"), {}
