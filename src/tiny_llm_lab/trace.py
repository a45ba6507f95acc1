"""What a scheduler plans, step by step: a probe that changes nothing, and runs of the engine under it."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from tiny_llm_lab.models.loading import load_checkpoint
from tiny_llm_lab.solution import load_solution
from tiny_llm_lab.types import Policy, SamplingParams, SchedulerConfig, StepPlan, UserError

_BLOCK_SIZE = 32


class ScheduleProbe:
    """Writes down what `scheduler.schedule` plans; who calls it gets the very same plan."""

    def __init__(self, scheduler: Any) -> None:
        """Watch `scheduler` from now on. Sets steps = []: one {request id: tokens} per call."""
        self.steps: list[dict[str, int]] = []
        self._schedule = scheduler.schedule
        scheduler.schedule = self._watched

    def _watched(self, *args: Any, **kwargs: Any) -> StepPlan:
        plan: StepPlan = self._schedule(*args, **kwargs)
        self.steps.append(dict(plan.num_scheduled_tokens))
        return plan


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
    if any(step < 0 for step, *_ in requests):
        raise UserError("an arrival step must be 0 or more: steps are counted from 0")
    engine = _engine(
        solution,
        SchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            # More never run at a time: each takes a token of the budget.
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_model_len=_default()[0].config.max_position_embeddings,
            long_prefill_token_threshold=long_prefill_token_threshold,
            policy=policy,
        ),
        sum(-(-(length + tokens) // _BLOCK_SIZE) for _, _, length, tokens in requests),
    )
    probe, draw = ScheduleProbe(engine.scheduler), random.Random(0)
    queue = sorted(requests, key=lambda request: request[0])
    while queue or engine.has_requests:
        while queue and queue[0][0] <= len(probe.steps):
            _, name, length, max_tokens = queue.pop(0)
            prompt = [draw.randrange(3, 2000) for _ in range(length)]
            engine.add(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        if engine.has_requests:
            engine.step()
        else:
            probe.steps.append({})
    engine.release()
    return probe.steps


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


def _engine(solution: str, config: SchedulerConfig, num_blocks: int) -> Any:
    package: Any = load_solution(solution)
    if not hasattr(package, "Engine"):
        raise UserError(f"solution {solution!r} has no Engine: choose --solution ref or mine")
    checkpoint, models = _default()
    model = models.setdefault(solution, package.build_model(checkpoint))
    return package.Engine(
        model,
        checkpoint.tokenizer,
        config,
        num_blocks=max(1, num_blocks),
        block_size=_BLOCK_SIZE,
        enable_prefix_caching=False,
    )


@cache
def _default() -> tuple[Any, dict[str, Any]]:
    """The default model's checkpoint, and the models made of it by solution."""
    return load_checkpoint("default"), {}
