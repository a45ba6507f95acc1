"""The state of every request in a running batch, built from its events alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tiny_llm_lab import types

Status = types.FinishReason | Literal["interrupted"]
Phase = Literal["queued", "prefill", "decode", "done"]


@dataclass
class RequestProgress:
    """One request so far; times are on the run's clock."""

    prompt_idx: int
    arrival_s: float
    max_tokens: int | None
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    completion: types.Completion | None = None

    @property
    def phase(self) -> Phase:
        if self.completion is not None:
            return "done"
        if self.token_ids:
            return "decode"
        return "prefill" if self.num_computed_tokens else "queued"

    @property
    def status(self) -> Status:
        """How it ended, or "interrupted" if it has not."""
        return self.completion.finish_reason if self.completion else "interrupted"

    def outcome(self) -> types.Completion:
        """The completion, or the part so far; `status` tells you which."""
        timing = types.Timing(self.arrival_s, tuple(self.token_s))
        return self.completion or types.Completion(
            self.prompt_idx, self.num_prompt_tokens, tuple(self.token_ids), self.text, "length", timing
        )


class BatchProgress:
    """Every request of one run, and which of them hold a slot."""

    def __init__(self, prompts: Sequence[types.Prompt], batch_size: int, start_s: float) -> None:
        self.start_s = start_s
        self.requests = [
            RequestProgress(idx, start_s + prompt.arrival_s, prompt.sampling.max_tokens)
            for idx, prompt in enumerate(prompts)
        ]
        self.slots: list[int | None] = [None] * batch_size

    def count(self, phase: Phase) -> int:
        """How many requests are in `phase`."""
        return sum(request.phase == phase for request in self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    def update(self, event: types.Event) -> RequestProgress:
        """Record an event; returns its request."""
        idx = event.completion.prompt_idx if isinstance(event, types.DoneEvent) else event.prompt_idx
        request = self.requests[idx]
        if isinstance(event, types.PrefillEvent):
            request.num_prompt_tokens = event.num_prompt_tokens
            request.num_computed_tokens = event.num_computed_tokens
            self._take_slot(idx)
        elif isinstance(event, types.TokenEvent):
            self._take_slot(idx)  # some solutions send no prefill events
            request.text += event.text
            if event.token_id is not None:
                request.token_ids.append(event.token_id)
                request.token_s.append(event.time_s)
        else:
            known = max(event.completion.num_prompt_tokens, request.num_prompt_tokens)
            request.completion = replace(event.completion, num_prompt_tokens=known)
            self.slots = [None if held == idx else held for held in self.slots]
        return request

    def _take_slot(self, idx: int) -> None:
        if idx in self.slots:
            return
        # A prefilling request can come on top of the decoding ones that fill every slot.
        free = self.slots.index(None) if None in self.slots else len(self.slots)
        self.slots[free : free + 1] = [idx]
