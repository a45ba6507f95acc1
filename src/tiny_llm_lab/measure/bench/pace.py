"""Prompts that arrive when an answer has a number of tokens, whatever the machine is doing."""

import time
from collections.abc import Sequence

from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import Event, Prompt, TokenEvent


class Pace:
    """Lets `prompts` arrive, as the `on_event` of their run. A loop reads arrival_s until a prompt is due."""

    def __init__(self, requests: Sequence[Request], prompts: Sequence[Prompt]) -> None:
        self._start_s, self._num_tokens = time.perf_counter(), 0
        self._waiting = [pair for pair in zip(requests, prompts, strict=True) if pair[0].after_tokens]
        for _, prompt in self._waiting:
            _arrive(prompt, float("inf"))

    def __call__(self, event: Event) -> None:
        if not isinstance(event, TokenEvent) or event.prompt_idx or event.token_id is None:
            return
        self._num_tokens += 1
        now_s = event.time_s - self._start_s
        for request, prompt in self._waiting:
            if request.after_tokens == self._num_tokens:
                _arrive(prompt, now_s + request.arrival_s)


def _arrive(prompt: Prompt, arrival_s: float) -> None:
    # Prompts are frozen for everybody else: a queue keeps the object that it was given.
    object.__setattr__(prompt, "arrival_s", arrival_s)
