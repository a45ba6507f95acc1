"""An instrument: how many tokens each step of a schedule computes, without a model."""

from collections.abc import Sequence

from tiny_llm_lab.types import SchedulerConfig

from ..cache.block_pool import BlockPool
from .scheduler import Scheduler
from .sequence import TokenSequence

_BLOCK_SIZE = 16


def probe(config: SchedulerConfig, arrivals: Sequence[tuple[int, str, int, int]]) -> list[dict[str, int]]:
    """Returns the tokens that a `Scheduler` computes in each step, by request id, until all have ended.

    `arrivals` are (step, request id, prompt_len, max_tokens), sorted by step: you add a request before you
    plan that step, counted from 0. It ends with its max_tokens-th token, and all its tokens fit in
    max_model_len. A step without work is an empty dict. The pool has blocks for all requests, and a sampled
    token is any number, because nothing reads it. Raises UserError like `Scheduler.add`.
    """
    num_blocks = sum(-(-(prompt_len + max_tokens) // _BLOCK_SIZE) for *_, prompt_len, max_tokens in arrivals)
    scheduler = Scheduler(config, BlockPool(max(1, num_blocks), _BLOCK_SIZE))
    queue, steps = list(arrivals), list[dict[str, int]]()
    unfinished: dict[str, tuple[TokenSequence, int]] = {}
    while queue or unfinished:
        while queue and queue[0][0] <= len(steps):
            _, name, prompt_len, max_tokens = queue.pop(0)
            unfinished[name] = TokenSequence(name, [0] * prompt_len), max_tokens
            scheduler.add(unfinished[name][0])
        plan = scheduler.schedule()
        steps.append(dict(plan.num_scheduled_tokens))
        sampled = {name: [0] for name, new in steps[-1].items() if unfinished[name][0].needs_sample(new)}
        scheduler.commit(plan, sampled)
        for name in sampled:
            sequence, max_tokens = unfinished[name]
            if len(sequence.output_token_ids) == max_tokens:
                scheduler.finish(name)
                del unfinished[name]
    return steps


def decode_step_costs(threshold: int, long_prompt_len: int = 256, max_tokens: int = 16) -> list[int]:
    """Returns all tokens of each step that brings a reader a token, the first token excepted.

    The reader's request has a prompt of one token and an answer of `max_tokens`. A request with a prompt of
    `long_prompt_len` tokens and an answer of two arrives in step 1, and gets at most `threshold` tokens of it
    in a step (0 = no limit). The budget of a step is large enough for both.
    """
    room = long_prompt_len + max_tokens
    config = SchedulerConfig(
        max_num_batched_tokens=room,
        max_num_seqs=2,
        max_model_len=room + 2,
        long_prefill_token_threshold=threshold,
    )
    steps = probe(config, [(0, "reader", 1, max_tokens), (1, "long", long_prompt_len, 2)])
    return [sum(step.values()) for step in steps if "reader" in step][1:]
