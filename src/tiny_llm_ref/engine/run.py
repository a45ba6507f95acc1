"""Many prompts through one engine: who has arrived goes in, and each has its completion in the end."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiny_llm_lab.types import (
    Clock,
    Completion,
    DoneEvent,
    EngineOutput,
    Event,
    EventCallback,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    UserError,
)

from ..generate.batch import _LONGEST_NAP_S, _by_arrival

if TYPE_CHECKING:
    from .engine import Engine


class EngineRun:
    """The prompts of one call of `Engine.generate`, by the way each has gone."""

    def __init__(
        self,
        engine: "Engine",
        prompts: Sequence[str | Sequence[int] | Prompt],
        on_event: EventCallback | None,
        clock: Clock,
    ) -> None:
        """Queue the prompts by arrival, on `clock` from now on; compute nothing.

        Raises UserError for a string in place of a list, ValueError when the engine has requests already.
        """
        self._queue = _by_arrival(prompts, SamplingParams())
        if engine.has_requests:
            raise ValueError("the engine has requests already: step it until they end, or abort them")
        self._engine, self._on_event, self._clock = engine, on_event, clock
        self._start_s = clock()
        self._active: dict[str, int] = {}  # what is known to be computed of its prompt
        self._done: list[Completion] = []

    def run(self) -> list[Completion]:
        """Step the engine until all prompts have their completions; return these in prompt order.

        Whatever ends it early, an interrupt or an error, takes the requests out of the engine.
        """
        try:
            while self._queue or self._active:
                self._add_arrived()
                if self._active:
                    self._publish(self._engine.step())
                elif self._queue:
                    due_s = self._queue[0][1].arrival_s - (self._clock() - self._start_s)
                    time.sleep(min(max(due_s, 0), _LONGEST_NAP_S))
        finally:
            for request_id in self._active:
                self._engine.abort(request_id)
        return sorted(self._done, key=lambda completion: completion.prompt_idx)

    def _add_arrived(self) -> None:
        now_s = self._clock() - self._start_s
        while self._queue and self._queue[0][1].arrival_s <= now_s:
            prompt_idx, prompt = self._queue.popleft()
            arrival_s = self._start_s + prompt.arrival_s
            try:
                self._engine.add(
                    str(prompt_idx),
                    prompt.content,
                    prompt.sampling,
                    priority=prompt.priority,
                    is_batch_class=prompt.is_batch_class,
                    arrival_s=arrival_s,
                    prompt_idx=prompt_idx,
                )
                self._active[str(prompt_idx)] = 0
            except UserError as error:
                failed = Completion(prompt_idx, 0, (), "", "error", Timing(arrival_s), str(error))
                self._tell(DoneEvent(failed))

    def _publish(self, outputs: Sequence[EngineOutput]) -> None:
        now_s = self._clock()
        for request in self._engine.scheduler.running:
            length = len(request.prompt_token_ids)
            self._tell_prefill(request.request_id, min(request.num_computed_tokens, length), length, now_s)
        for output in outputs:
            if output.completion is not None:  # and so does not run any more
                length = output.completion.num_prompt_tokens
                self._tell_prefill(output.request_id, length, length, now_s)
                del self._active[output.request_id]
            for event in output.events:
                self._tell(event)

    def _tell_prefill(self, request_id: str, num_computed: int, length: int, now_s: float) -> None:
        # A request that was preempted computes some of its prompt again, which is no news.
        if num_computed > self._active[request_id]:
            self._active[request_id] = num_computed
            self._tell(PrefillEvent(int(request_id), num_computed, length, now_s))

    def _tell(self, event: Event) -> None:
        if isinstance(event, DoneEvent):
            self._done.append(event.completion)
        if self._on_event is not None:
            self._on_event(event)
