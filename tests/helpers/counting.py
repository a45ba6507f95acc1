"""Week 2's loop on a clock of tokens: a model that computes nothing counts what goes through it."""

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import cast

import mlx.core as mx

from tiny_llm_lab import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Completion, Event, Memory, Prompt, Wanted


class CountingModel:
    """One layer that stores zeros; its clock is the number of tokens that went through it."""

    config = SimpleNamespace(num_hidden_layers=1, max_position_embeddings=4096, vocab_size=8)
    ops = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, offset: object, cache: list[Memory], *, wanted: Wanted) -> mx.array:
        self.num_tokens += tokens.size
        zeros = mx.zeros((tokens.shape[0], 1, tokens.shape[1], 1))
        cache[0].update_and_fetch(zeros, zeros)
        return mx.zeros((tokens.shape[0], wanted.last, 8))

    def create_kv_cache(self) -> list[Memory]:
        return [TaskNames(cast(ModuleType, load_solution("ref"))).TinyKvFullCache()]


class Silent:
    """A tokenizer without text and without an end."""

    eos_token_ids: frozenset[int] = frozenset()
    last_segment = ""
    add_token = finalize = lambda *_: None

    @property
    def detokenizer(self) -> "Silent":
        return self


def serve(
    prompts: Sequence[Prompt], prefill_step: int, batch_size: int = 2
) -> tuple[list[Completion], list[Event]]:
    """The completions and the events of the reference's loop, whose seconds are tokens."""
    model, events = CountingModel(), list[Event]()
    batch_generate = cast(Callable[..., list[Completion]], load_solution("ref").batch_generate)
    done = batch_generate(
        model,
        Silent(),
        prompts,
        prefill_step=prefill_step,
        batch_size=batch_size,
        on_event=events.append,
        clock=lambda: float(model.num_tokens),
    )
    return done, events
