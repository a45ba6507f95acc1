"""Runs of the engine on random prompts, for the schedule and not for the answers."""

import random
from collections.abc import Sequence
from functools import cache

from tiny_llm_lab.measure.trace.timeline import TraceRequest
from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.runtime.solution import load_serving, load_solution
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import Checkpoint, SamplingParams, SchedulerConfig, UserError

_BLOCK_SIZE = 16


def trace_run(
    requests: Sequence[TraceRequest],
    config: SchedulerConfig,
    *,
    solution: str = "ref",
    shared_prefix: int = 0,
) -> list[dict[str, int]]:
    """The tokens that each step of the engine computes: one {name: tokens} a step, idle steps included.

    A request is added before its arrival step is planned. The default model runs on
    prompts of random tokens and always generates max_tokens; there are blocks for all. The first
    `shared_prefix` tokens of all prompts are the same; without any there is no prefix cache. Raises
    UserError for bad settings.
    """
    if any(request.arrival_step < 0 for request in requests):
        raise UserError("an arrival step must be 0 or more")
    checkpoint, llm = _default_checkpoint(), load_solution(solution)
    num_blocks = sum(-(-(request.prompt_len + request.max_tokens) // _BLOCK_SIZE) for request in requests)
    steps: list[dict[str, int]] = []
    engine = build_engine(
        load_serving(solution),
        Loaded(checkpoint, llm, llm.build_model(checkpoint)),
        EngineSettings(
            config,
            block_size=_BLOCK_SIZE,
            enable_prefix_caching=shared_prefix > 0,
            num_blocks=max(1, num_blocks),
        ),
        on_step=lambda plan, _: steps.append(dict(plan.num_scheduled_tokens)),
    )
    vocabulary, draw = range(3, min(2000, checkpoint.config.vocab_size)), random.Random(0)
    shared = [draw.choice(vocabulary) for _ in range(shared_prefix)]
    queue = sorted(requests, key=lambda request: request.arrival_step)
    while queue or engine.has_requests:
        while queue and queue[0].arrival_step <= len(steps):
            request = queue.pop(0)
            own = [draw.choice(vocabulary) for _ in range(request.prompt_len)]
            prompt = (shared + own)[: request.prompt_len]
            sampling = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True)
            engine.add(request.name, prompt, sampling, priority=request.priority)
        if engine.has_requests:
            engine.step()
        else:
            steps.append({})
    engine.release()
    return steps


def max_trace_len() -> int:
    """Positions of the default model: the most tokens of a traced prompt and its answer."""
    return int(_default_checkpoint().config.max_position_embeddings)


@cache
def _default_checkpoint() -> Checkpoint:
    return load_checkpoint("default")
