"""What a fuzz asks: prompts, sampling parameters and settings, all from one random generator."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from tests.helpers.toy import QWEN3

from tiny_llm_lab.runtime.structured.thoughts import ThoughtProcessor, Thoughts
from tiny_llm_lab.types import Prompt, RowChanges, SamplingParams, SchedulerConfig, UserError

BLOCK_SIZES = (1, 2, 3, 4, 7, 8, 16, 32)


def draw_sampling(rng: random.Random, max_tokens: int) -> SamplingParams:
    """Greedy and drawn, cut in every way; answers of at most `max_tokens`, or as long as there is room."""
    greedy = SamplingParams(
        max_tokens=rng.choice((1, 2, max_tokens, max_tokens, max_tokens, rng.randint(1, max_tokens))),
        ignore_eos=rng.random() < 0.6,
        logprobs=rng.choice((None, None, None, 0, 2)),
    )
    if rng.random() < 0.35:
        return greedy
    return replace(
        greedy,
        temperature=rng.choice((0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)),
        top_k=rng.choice((0, 0, 0, 0, 1, 3, 20, 300, 1300)),
        top_p=rng.choice((1.0, 1.0, 0.95, 0.9, 0.8, 0.5)),
        min_p=rng.choice((0.0, 0.0, 0.02, 0.3)),
        seed=rng.choice((0, 1, 2, rng.randrange(2**64), 2**64 - 1)),
    )


def draw_prompts(
    rng: random.Random, count: int, limit: int, period: int, is_long: bool, changed: float
) -> list[Prompt]:
    """Prompts for at most `limit` stored tokens; many have a multiple of `period` tokens, or begin alike.

    A few cannot be served. `is_long`: two have about the 512 tokens that a draft model
    computes in a pass. `changed`: which share has changed logits.
    """
    common = _text(rng, 80)
    prompts: list[Prompt] = []
    for _ in range(count):
        length = max(1, min(limit, _length(rng, limit, period)))
        shared = min(rng.choice((0, 0, period, 2 * period, 80)), length)
        tokens = [*common[:shared], *_text(rng, length - shared)]
        if prompts and rng.random() < 0.15:
            tokens = list(prompts[-1].content)
        room = max(1, min(limit + 1 - len(tokens), 60))
        sampling = draw_sampling(rng, min(room, rng.choice((6, 18, 40))))
        if room < 30 and rng.random() < 0.3:
            sampling = replace(sampling, max_tokens=None)
        prompts.append(
            Prompt(
                tokens,
                sampling,
                priority=rng.randrange(3),
                priority_class="batch" if rng.random() < 0.25 else "interactive",
            )
        )
    if is_long:
        # The answer's first token is the last of 512, or of one more or less.
        sampling = replace(draw_sampling(rng, 6), max_tokens=6, ignore_eos=True)
        prompts += [Prompt(_text(rng, length), sampling) for length in (511, rng.choice((510, 512)))]
    prompts = [with_changed_logits(rng, each) if rng.random() < changed else each for each in prompts]
    if rng.random() < 0.15:
        bad: Sequence[Sequence[int]] = ([], [3, QWEN3.vocab_size], [5] * (limit + 1))
        prompts.insert(rng.randrange(len(prompts) + 1), Prompt(rng.choice(bad)))
    return prompts


class Barring:
    """A processor: bars a third of the tokens, another one after every token of the answer."""

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        assert all(0 <= token < len(logits) for token in answer), "a token outside the vocabulary"
        rest = (sum(answer) + len(prompt) + len(answer)) % 3
        return mx.where(mx.arange(len(logits)) % 3 == rest, -mx.inf, logits)


class Form:
    """A processor that can say what it changes, as a grammar does: a mask that depends on the answer."""

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        return mx.where(mx.array(self._is_allowed(answer, len(logits))), logits, -mx.inf)

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        return self._bars_others(self._is_allowed(answer, 32 * -(-vocab_size // 32)))

    def before(self, vocab_size: int) -> RowChanges:
        # Few are barred, so that thoughts can end by themselves.
        return self._bars_others(np.arange(32 * -(-vocab_size // 32)) % 31 > 0)

    def _bars_others(self, is_allowed: np.ndarray) -> RowChanges:
        return RowChanges(allowed=np.packbits(is_allowed, bitorder="little").view(np.uint32))

    def _is_allowed(self, answer: Sequence[int], num: int) -> np.ndarray:
        step = 1 + (7 * sum(answer) + len(answer)) % 31  # from all tokens down to nine
        return np.arange(num) % step == 0


def with_changed_logits(rng: random.Random, prompt: Prompt) -> Prompt:
    """The same prompt, with penalties, biases, a shortest answer, stop tokens or a processor."""
    sampling = replace(
        prompt.sampling,
        repetition_penalty=rng.choice((1.0, 1.0, 0.7, 1.3)),
        presence_penalty=rng.choice((0.0, 0.0, -1.0, 2.0)),
        frequency_penalty=rng.choice((0.0, 0.0, -0.3, 0.9)),
        logit_bias={
            rng.randrange(QWEN3.vocab_size): rng.uniform(-9, 9) for _ in range(rng.choice((0, 3, 40)))
        },
        min_tokens=min(rng.choice((0, 0, 1, 3, 99)), prompt.sampling.max_tokens or 2),
        stop_token_ids=tuple(rng.randrange(QWEN3.vocab_size) for _ in range(rng.choice((0, 0, 20)))),
        prompt_logprobs=rng.choice((None, None, None, 0, 3)),
    )
    thoughts = Thoughts(9, rng.randrange(97, 123), is_open=rng.random() < 0.9)  # 9: the token <think>
    thoughts = replace(thoughts, close=(10, thoughts.end, 10))
    budgeted = ThoughtProcessor(thoughts, rng.choice((0, 1, 4, 16, None)), rng.choice((None, Form())))
    processors = rng.choice(((), (Form(),), (Barring(),), (Form(), Barring()), (budgeted,), (budgeted,)))
    return replace(prompt, sampling=sampling, processors=processors)


def with_stop(rng: random.Random, prompt: Prompt, text: str) -> Prompt:
    """The same prompt, to be stopped somewhere within `text`, its answer so far."""
    start = rng.randrange(max(1, len(text)))
    piece = text[start : start + rng.randint(1, 4)]
    stop = (piece, "never said") if piece else ("never said",)
    return replace(prompt, sampling=replace(prompt.sampling, stop=stop))


def draw_config(rng: random.Random, limit: int) -> SchedulerConfig:
    """Any settings that may be combined, for requests of at most `limit` stored tokens."""
    while True:
        is_chunked = rng.random() < 0.85
        settings: dict[str, Any] = {
            "max_num_batched_tokens": rng.choice((1, 5, 8, 17, 40, 200, 200, 2048)),
            "max_num_seqs": rng.choice((1, 3, 5, 8, 8, 32)),
            "max_model_len": limit,
            "long_prefill_token_threshold": rng.choice((0, 0, 1, 4, 9, 30)),
            "enable_chunked_prefill": is_chunked,
            "policy": rng.choice(("fcfs", "fair", "priority")),
            "step_mode": rng.choice(("mixed", "mixed", "mixed", "alternate")),
            "max_num_partial_prefills": rng.choice((0, 0, 0, 1, 2)),
            "chunk_grid": rng.choice((0, 0, 0, 1, 4, 7)) if is_chunked else 0,
        }
        try:
            config = SchedulerConfig(**settings)
        except UserError:
            continue
        grid, threshold = config.chunk_grid, config.long_prefill_token_threshold
        room = config.max_num_batched_tokens - config.max_num_seqs + 1
        if grid == 0 or (grid <= room and not 0 < threshold < grid):
            return config


def draw_caching(rng: random.Random, block_size: int, has_states: bool) -> dict[str, Any]:
    """Options of an engine that decide what is computed, and when; never what comes out."""
    options: dict[str, Any] = {
        "enable_prefix_caching": rng.random() < 0.85,
        "async_scheduling": rng.random() < 0.85,
    }
    if has_states:
        options["num_states"] = rng.choice((1, 2, 5, 64))
        options["snapshot_every"] = block_size * rng.choice((1, 2, 5, 99))
    return options


def describe(config: object) -> str:
    """The settings of a dataclass that are not the defaults, in one line."""
    default = type(config)()
    changed = (name for name in vars(default) if getattr(config, name) != getattr(default, name))
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in changed)


def _length(rng: random.Random, limit: int, period: int) -> int:
    at_blocks = period, period * rng.randint(1, 4), period * rng.randint(1, 4) + 1
    any_length = rng.randint(1, limit), rng.randint(1, min(limit, 20)), limit - rng.randint(0, 2)
    short = rng.randint(1, min(limit, 8)), rng.randint(1, min(limit, 8))
    return rng.choice((1, 2, *at_blocks, *any_length, *short))


def _text(rng: random.Random, length: int) -> list[int]:
    """Tokens of which some repeat: a draft can then be looked up, sometimes."""
    if rng.random() < 0.4:
        return [rng.randrange(QWEN3.vocab_size - 2) for _ in range(length)]
    phrase = [rng.randrange(97, 123) for _ in range(rng.randint(1, 9))]
    return [phrase[i % len(phrase)] if rng.random() < 0.9 else rng.randrange(97, 123) for i in range(length)]
