"""The state of one batch: prompts that wait, one in prefill, and those that decode together."""

import sys
import time
from collections.abc import Sequence
from typing import cast

from tiny_llm_lab.types import (
    Arrival,
    Arrivals,
    ChunkPolicy,
    Clock,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    Model,
    ModelConfig,
    PrefillMetrics,
    PrefillPolicy,
    Prompt,
    SamplingParams,
    Tokenizer,
    UserError,
    is_async_scheduling,
    prompt_token_ids,
    refuse_processors,
)

from ..cache.kv_cache import BatchingKvCache, reserve_ahead
from .chunking import select_optimal_chunk_size
from .request import DecodeStep, Request


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
        prefill_step: int | None = 128,
        prefill_memory: int | None = None,
        chunk_policy: ChunkPolicy | None = None,
        prefill_policy: PrefillPolicy | None = None,
        metrics: PrefillMetrics | None = None,
        sampling: SamplingParams = SamplingParams(),
        on_event: EventCallback | None = None,
        async_scheduling: bool | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Queue the prompts by arrival; compute nothing. For the arguments see `batch_generate`.

        Sets request_queue (the `Arrivals` that have not started), pending_prefill_request (None or the one
        request in prefill), decode_requests (the active ones, in the order of the batch cache's rows) and
        kv_cache (one BatchingKvCache per layer). Sets async_scheduling as `is_async_scheduling` says.
        """
        if batch_size < 1 or (prefill_step is not None and prefill_step < 1):
            raise UserError("prefill_step and batch_size must be 1 or more")
        limit = model.config.max_position_embeddings
        if not 1 <= max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
        self.model, self.tokenizer = model, tokenizer
        self.max_seq_len, self.batch_size, self.prefill_step = max_seq_len, batch_size, prefill_step
        self.prefill_memory = sys.maxsize if prefill_memory is None else prefill_memory
        self.chunk_policy, self.prefill_policy, self.metrics = chunk_policy, prefill_policy, metrics
        self.pending_prefill_request: Request | None = None
        self.decode_requests: list[Request] = []
        self.kv_cache = [
            BatchingKvCache(batch_size, max_seq_len, headroom=i, ops=model.ops)
            for i in range(model.config.num_hidden_layers)
        ]
        self._completions: list[Completion] = []
        self._on_event, self._clock = on_event, clock
        self.async_scheduling = is_async_scheduling(async_scheduling)
        self._inflight: DecodeStep | None = None  # launched, and not yet read
        self.request_queue = Arrivals(prompts, sampling, clock)
        if prefill_policy is not None:
            prefill_policy.begin(self.request_queue, batch_size, clock)

    def has_work_remaining(self) -> bool:
        """True while any request waits, is in prefill, paused or decodes."""
        kept = self.prefill_policy is not None and self.prefill_policy.num_waiting
        return bool(self.request_queue or kept or self.pending_prefill_request or self.decode_requests)

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the pending request; without one, start the next that has arrived.

        A request starts only while fewer than batch_size decode, so that a slot is free when it is ready. A
        prompt that cannot be served ends with a completion as `Arrival.refused` makes it. A chunk policy may
        set its size; 0 pauses the prefill while requests decode. Returns whether anything was done.
        From task 2.8.6 on: a prefill policy may pause it too, and chooses who goes on or starts.
        """
        self._change_prefill()
        if self.pending_prefill_request is None and not self._start_next():
            return False
        request = self.pending_prefill_request
        if request is None:
            return True
        request.prefill_max_step = self._chunk_size(request)
        if request.prefill_max_step == 0:
            return False
        start_s = self._clock()
        num_tokens = request.try_prefill()
        reserve_ahead(self.kv_cache, len(request.prefill_tokens), request.offset)
        seconds = self._clock() - start_s
        if self.chunk_policy is not None:
            self.chunk_policy.record_chunk(num_tokens, seconds)
        if self.metrics is not None:
            self.metrics.record_prefill_chunk(seconds, num_tokens)
        self._publish(request.take_events())
        return True

    def handle_decode_phase(self) -> bool:
        """One token for every active request in one forward pass; those that end leave the batch.

        Returns whether there was anything to decode.
        From task 2.7.9 on: with async_scheduling the next step is launched before this one is read, if it is
        certain to serve the same requests: not when a finished prefill is about to join.
        """
        if not self.decode_requests:
            return False
        start_s = self._clock()
        step = self._inflight or DecodeStep(self.model, self.kv_cache, self.decode_requests)
        self._inflight = self._launch_next(step)
        tokens = dict(zip(step.requests, step.read(), strict=True))
        if self.metrics is not None:
            self.metrics.record_decode_step(self._clock() - start_s)
        for request in self.decode_requests:  # some may have left since the step was launched, or joined
            if request in tokens:
                request.decode_done(tokens[request])
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
        self.request_queue.wait()

    def collect_results(self) -> list[Completion]:
        """Every completion so far, in prompt order."""
        return sorted(self._completions, key=lambda completion: completion.prompt_idx)

    def release(self) -> None:
        """Give all cache memory back, whatever state the run is in."""
        for layer in self.kv_cache:
            layer.release()
        if self.pending_prefill_request is not None:
            self.pending_prefill_request.release()
        if self.prefill_policy is not None:
            self.prefill_policy.release()

    def _change_prefill(self) -> None:
        policy, pending = self.prefill_policy, self.pending_prefill_request
        if policy is not None and pending is None:
            self.pending_prefill_request = cast(Request | None, policy.resume(len(self.decode_requests)))
        elif policy is not None and pending is not None and policy.pause(pending):
            self.pending_prefill_request = None

    def _next_arrival(self) -> Arrival | None:
        policy = self.prefill_policy
        return self.request_queue.pop() if policy is None else policy.pop(len(self.decode_requests))

    def _start_next(self) -> bool:
        if len(self.decode_requests) == self.batch_size or (arrival := self._next_arrival()) is None:
            return False
        prompt, num_tokens = arrival.prompt, 0
        try:
            tokens = prompt_token_ids(self.tokenizer, prompt.content, self.model.config)
            num_tokens = len(tokens)
            refuse_processors(prompt.sampling, prompt.processors)
            self.pending_prefill_request = Request(
                self.model,
                self.tokenizer,
                tokens,
                prompt_idx=arrival.prompt_idx,
                max_seq_len=self.max_seq_len,
                sampling=prompt.sampling,
                arrival_s=arrival.arrival_s,
                clock=self._clock,
            )
        except UserError as error:
            self._publish([DoneEvent(arrival.refused(error, num_tokens))])
        return True

    def _chunk_size(self, request: Request) -> int:
        """The most tokens of the next chunk; 0 pauses the prefill, which only decodes can be reason for."""
        num_active = len(self.decode_requests)
        base = self.prefill_step
        if base is None:
            base = select_optimal_chunk_size(
                len(request.prefill_tokens),
                self.prefill_memory,
                num_active,
                batch_size=self.batch_size,
                bytes_per_token=_bytes_per_token(self.model.config),
            )
        if self.chunk_policy is None:
            return base
        size = self.chunk_policy.select_chunk_size(base, num_active / self.batch_size)
        return size if num_active else max(1, size)

    def _launch_next(self, step: DecodeStep) -> DecodeStep | None:
        prefill = self.pending_prefill_request
        joins = prefill is not None and prefill.is_prefill_done
        return step.launch_next(self.decode_requests) if self.async_scheduling and not joins else None

    def _remove_ended(self) -> None:
        # From the last row down: the row that fills a gap has been looked at already.
        for row in reversed(range(len(self.decode_requests))):
            if self.decode_requests[row].is_done:
                for layer in self.kv_cache:
                    layer.remove_request(row)
                self.decode_requests[row] = self.decode_requests[-1]
                self.decode_requests.pop()
        if not self.decode_requests:
            self._inflight = None  # serves no request any more

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DoneEvent):
                self._completions.append(event.completion)
            if self._on_event is not None:
                self._on_event(event)


def _bytes_per_token(config: ModelConfig) -> int:
    """What a token of a chunk takes at most: keys and values of all layers, activations of one, float32."""
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 4 * (kv + config.hidden_size + 2 * config.intermediate_size)
