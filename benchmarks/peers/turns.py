"""Prompts, then steps of all of them, timed one by one. Here and in the pythons of other engines."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Engine(Protocol):
    """A loaded model with room for what is asked of it."""

    def prefill(self, ids: Array) -> list[float]:
        """Forget everything, then compute prompts, [B, L]; returns the seconds of each forward pass."""

    def step(self, ids: Array) -> float:
        """Compute one more token of every prompt, [B]; returns seconds."""


def seconds(call: Callable[..., object], *args: object) -> float:
    """How long the call takes."""
    start_s = time.perf_counter()
    call(*args)
    return time.perf_counter() - start_s


def measure(
    engine: Engine, lengths: Sequence[int], streams: int, vocab_size: int, seed: int
) -> dict[str, object]:
    """Seconds of the forward passes of `streams` prompts, of each step behind them, and of all by the clock.

    `lengths` are tokens in a prompt of the warm-up, in one of the run, and in an answer.
    """
    draw = np.random.default_rng(seed)
    warm_up_len, prompt_len, max_tokens = lengths

    def run(length: int, num_steps: int) -> tuple[list[float], list[float]]:
        prefill_s = engine.prefill(draw.integers(0, vocab_size, (streams, length)))
        return prefill_s, [engine.step(draw.integers(0, vocab_size, streams)) for _ in range(num_steps)]

    run(warm_up_len, 2)
    prefill_s, steps_s = run(prompt_len, max_tokens - 1)
    return {"took_s": sum(prefill_s + steps_s), "prefill_s": prefill_s, "steps_s": steps_s}
