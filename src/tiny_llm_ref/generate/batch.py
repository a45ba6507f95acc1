"""Continuous batching with chunked prefill: one chunk, one decode step, one move, over and over."""

import time
from collections import deque
from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    Clock,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    Model,
    Prompt,
    SamplingParams,
    Timing,
    Tokenizer,
    UserError,
)

from ..cache.kv_cache import BatchingKvCache, reserve_ahead
from .request import Request

# Longest sleep while nothing has arrived, so that an interrupt is never far away.
_LONGEST_NAP_S = 0.05


class BatchGenerator:
    """Up to `batch_size` requests at a time: at most one in prefill, the others decoding together."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[str | Sequence[int] | Prompt],
        *,
        max_seq_len: int = 512,
        batch_size: int = 5,
        prefill_step: int = 128,
        sampling: SamplingParams = SamplingParams(),
        on_event: EventCallback | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Queue the prompts by arrival; compute nothing. For the arguments see `batch_generate`.

        Sets request_queue (what has not started), pending_prefill_request (None or the one request in
        prefill), decode_requests (the active ones, in the order of the batch cache's rows) and kv_cache
        (one BatchingKvCache per layer).
        """
        if prefill_step < 1 or batch_size < 1:
            raise UserError("prefill_step and batch_size must be 1 or more")
        limit = model.config.max_position_embeddings
        if not 1 <= max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
        self.model, self.tokenizer = model, tokenizer
        self.max_seq_len, self.batch_size, self.prefill_step = max_seq_len, batch_size, prefill_step
        self.request_queue = _by_arrival(prompts, sampling)
        self.pending_prefill_request: Request | None = None
        self.decode_requests: list[Request] = []
        self.kv_cache = [
            BatchingKvCache(batch_size, max_seq_len, headroom=i)
            for i in range(model.config.num_hidden_layers)
        ]
        self._completions: list[Completion] = []
        self._on_event, self._clock = on_event, clock
        self._start_s = clock()

    def has_work_remaining(self) -> bool:
        """True while any request waits, is in prefill or decodes."""
        return bool(self.request_queue or self.pending_prefill_request or self.decode_requests)

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the pending request; without one, start the next that has arrived.

        A request starts only while fewer than batch_size decode, so that a slot is free when it is
        ready. A prompt that cannot be served ends with an error completion of its own. Returns whether
        anything was done.
        """
        if self.pending_prefill_request is None and not self._start_next():
            return False
        request = self.pending_prefill_request
        if request is not None:
            request.try_prefill()
            reserve_ahead(self.kv_cache, len(request.prefill_tokens), request.offset)
            self._publish(request.take_events())
        return True

    def handle_decode_phase(self) -> bool:
        """One token for every active request in one forward pass; those that end leave the batch.

        Returns whether there was anything to decode.
        """
        if not self.decode_requests:
            return False
        requests = list(self.decode_requests)
        tokens = mx.array([[request.next_token] for request in requests])
        offsets = [request.offset for request in requests]
        logits = self.model(tokens, offsets, self.kv_cache, logits_to_keep=1)[:, -1]
        # Every request samples from its own row with its own state: nobody's draw moves another's.
        draws = [request.sample(logits[row : row + 1]) for row, request in enumerate(requests)]
        sampled = cast(list[int], mx.concatenate(draws).tolist())
        for request, token in zip(requests, sampled, strict=True):
            request.decode_done(token)
            self._publish(request.take_events())
        self._remove_ended()
        return True

    def move_prefill_to_decode(self) -> bool:
        """Give a request whose prompt is computed a row of the batch; returns whether one moved.

        A request that ended with its first token leaves without taking a row.
        """
        request = self.pending_prefill_request
        if request is None or not request.is_prefill_done:
            return False
        self.pending_prefill_request = None
        if not request.is_done:
            for batch_layer, layer in zip(self.kv_cache, request.kv_cache, strict=True):
                batch_layer.add_request(layer)
            self.decode_requests.append(request)
        request.release()
        return True

    def wait_for_arrival(self) -> None:
        """Sleep a little when the next request has not arrived; call when no phase made progress."""
        if self.request_queue:
            due_s = self.request_queue[0][1].arrival_s - (self._clock() - self._start_s)
            time.sleep(min(max(due_s, 0), _LONGEST_NAP_S))

    def collect_results(self) -> list[Completion]:
        """Every completion so far, in prompt order."""
        return sorted(self._completions, key=lambda completion: completion.prompt_idx)

    def release(self) -> None:
        """Give all cache memory back, whatever state the run is in."""
        for layer in self.kv_cache:
            layer.release()
        if self.pending_prefill_request is not None:
            self.pending_prefill_request.release()

    def _start_next(self) -> bool:
        now_s = self._clock() - self._start_s
        is_full = len(self.decode_requests) == self.batch_size
        if is_full or not self.request_queue or self.request_queue[0][1].arrival_s > now_s:
            return False
        prompt_idx, prompt = self.request_queue.popleft()
        arrival_s = self._start_s + prompt.arrival_s
        try:
            self.pending_prefill_request = Request(
                self.model,
                self.tokenizer,
                prompt.content,
                self.prefill_step,
                prompt_idx,
                max_seq_len=self.max_seq_len,
                sampling=prompt.sampling,
                arrival_s=arrival_s,
                clock=self._clock,
            )
        except UserError as error:
            failed = Completion(prompt_idx, 0, (), "", "error", Timing(arrival_s), str(error))
            self._publish([DoneEvent(failed)])
        return True

    def _remove_ended(self) -> None:
        # From the last row down: the row that fills a gap has been looked at already.
        for row in reversed(range(len(self.decode_requests))):
            if self.decode_requests[row].is_done:
                for layer in self.kv_cache:
                    layer.remove_request(row)
                self.decode_requests[row] = self.decode_requests[-1]
                self.decode_requests.pop()

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DoneEvent):
                self._completions.append(event.completion)
            if self._on_event is not None:
                self._on_event(event)


def batch_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int] | Prompt],
    *,
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int = 128,
    sampling: SamplingParams = SamplingParams(),
    on_event: EventCallback | None = None,
    clock: Clock = time.perf_counter,
) -> list[Completion]:
    """Answer every prompt; return one completion per prompt, in prompt order.

    Each iteration has three phases: one prefill chunk of at most `prefill_step` tokens, one decode step
    for all active requests, and the move of a finished prefill into a free slot. At most `batch_size`
    requests hold cache memory, none more than `max_seq_len` tokens of it. `sampling` serves prompts
    that bring none of their own. `on_event` is called with every chunk, token and end as it happens.

    `prompts` is not changed. A prompt that cannot be served (empty, longer than max_seq_len) becomes a
    completion with finish_reason "error"; the others are not affected. All cache memory is given back
    at the end, also after an exception. Raises UserError when a setting is out of range or `prompts` is
    a string.
    """
    run = BatchGenerator(
        model,
        tokenizer,
        prompts,
        max_seq_len=max_seq_len,
        batch_size=batch_size,
        prefill_step=prefill_step,
        sampling=sampling,
        on_event=on_event,
        clock=clock,
    )
    try:
        while run.has_work_remaining():
            progress = [run.handle_prefill_phase(), run.handle_decode_phase(), run.move_prefill_to_decode()]
            if not any(progress):
                run.wait_for_arrival()
    finally:
        run.release()
    return run.collect_results()


def _by_arrival(
    prompts: Sequence[str | Sequence[int] | Prompt], sampling: SamplingParams
) -> deque[tuple[int, Prompt]]:
    if isinstance(prompts, str):
        raise UserError("prompts is one string: pass a list of prompts")
    full = [p if isinstance(p, Prompt) else Prompt(p, sampling) for p in prompts]
    return deque(sorted(enumerate(full), key=lambda numbered: numbered[1].arrival_s))
