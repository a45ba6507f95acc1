"""Continuous batching with chunked prefill: the state of one batch, and a loop of its three phases."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiny_llm_lab.types import (
    Arrival,
    Arrivals,
    BatchSettings,
    Completion,
    DoneEvent,
    Event,
    Model,
    Prompt,
    ReportRefused,
    Tokenizer,
    UserError,
    is_async_scheduling,
    prompt_token_ids,
)

from ..cache.kv_cache import reserve_ahead
from .chunking import next_chunk_size
from .request import DecodeStep, Request


class BatchGenerator:
    """Up to `batch_size` requests at a time: at most one is in prefill, the others decode together."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[str | Sequence[int] | Prompt],
        settings: BatchSettings,
    ) -> None:
        """Queue the prompts by arrival and begin a run of settings.prefill_policy; compute nothing.

        Sets settings, request_queue (the `Arrivals` that have not started), pending_prefill_request (the
        request in prefill, or None), decode_requests (the active requests, in the order of the batch cache's
        rows) and kv_cache (a memory per layer, from `for_batch` of one request's). Sets async_scheduling to
        what `is_async_scheduling` returns. Raises UserError like `BatchSettings.require_valid`.
        """
        settings.require_valid(model.config)
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.pending_prefill_request: Request | None = None
        self.decode_requests: list[Request] = []
        # Layers grow at other tokens, so that not all of them copy in one step.
        self.kv_cache = [
            layer.for_batch(settings.batch_size, settings.max_seq_len, headroom=i)
            for i, layer in enumerate(model.create_kv_cache())
        ]
        self.async_scheduling = is_async_scheduling(settings.async_scheduling)
        self._completions: list[Completion] = []
        self._inflight: DecodeStep | None = None  # launched, and not yet read
        self.request_queue = Arrivals(prompts, settings.sampling, settings.clock)
        settings.prefill_policy.begin(settings.batch_size, settings.clock)

    def has_work_remaining(self) -> bool:
        """Whether any request waits (in the queue or with the policy), is in prefill, or decodes."""
        waiting = self.request_queue or self.settings.prefill_policy.num_waiting
        return bool(waiting or self.pending_prefill_request or self.decode_requests)

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the prompt that the prefill policy selects; return whether anything was done.

        Does not ask the policy while batch_size requests decode, so that a row is free when a prompt is
        ready. A prompt that can't be served ends with the completion that `Arrival.refused` returns. The size
        of the chunk is `next_chunk_size`; 0 means no chunk. The chunk is reported to chunk_policy and
        metrics.
        """
        settings, num_decoding = self.settings, len(self.decode_requests)
        if num_decoding == settings.batch_size:
            return False
        chosen = settings.prefill_policy.select_prefill(
            self.request_queue, self.pending_prefill_request, num_decoding
        )
        request = self._start(chosen) if isinstance(chosen, Arrival) else chosen
        self.pending_prefill_request = request
        if request is None:
            return chosen is not None  # refusing a prompt is progress
        num_prompt_tokens = len(request.prefill_tokens)
        size = next_chunk_size(settings, self.model.config, num_prompt_tokens, num_decoding)
        if size == 0:
            return False
        request.prefill_max_step = size
        start_s = settings.clock()
        num_tokens = request.try_prefill()
        reserve_ahead(self.kv_cache, num_prompt_tokens, request.offset)
        seconds = settings.clock() - start_s
        settings.chunk_policy.record_chunk(num_tokens, seconds)
        settings.metrics.record_prefill_chunk(seconds, num_tokens)
        self._publish(request.answer.take_events())
        return True

    def handle_decode_phase(self) -> bool:
        """Compute one token for every active request in one forward pass. Ended requests leave the batch.

        Returns whether there was anything to decode.
        From task 2.7.9 on: with async_scheduling the next step is launched before this step is read, if it is
        certain to serve the same requests. It is not certain if a finished prefill is about to join.
        """
        if not self.decode_requests:
            return False
        start_s = self.settings.clock()
        step = self._inflight or DecodeStep.launch(self.model, self.kv_cache, self.decode_requests)
        self._inflight = self._launch_next(step)
        tokens = dict(zip(step.requests, step.read(), strict=True))
        self.settings.metrics.record_decode_step(self.settings.clock() - start_s)
        for request in self.decode_requests:  # some may have left or joined since the launch
            if request in tokens:
                request.decode_done(tokens[request])
                self._publish(request.answer.take_events())
        self._remove_ended()
        return True

    def move_prefill_to_decode(self) -> bool:
        """Give a row of the batch to a request whose prompt is computed; return whether one moved.

        A request that ended with its first token leaves without taking a row.
        """
        request = self.pending_prefill_request
        if request is None or not request.is_prefill_done:
            return False
        self.pending_prefill_request = None
        if not request.answer.is_done:
            for batch_layer, layer in zip(self.kv_cache, request.kv_cache, strict=True):
                batch_layer.add_request(layer)
            self.decode_requests.append(request)
        request.release()
        return True

    def wait_for_arrival(self) -> None:
        """Sleep a little if the next request has not arrived. Call it when no phase made progress."""
        self.request_queue.wait()

    def collect_results(self) -> list[Completion]:
        """Returns all completions so far, in prompt order."""
        return sorted(self._completions, key=lambda completion: completion.prompt_idx)

    def release(self) -> None:
        """Free all cache memory, in any state of the run."""
        for layer in self.kv_cache:
            layer.release()
        if self.pending_prefill_request is not None:
            self.pending_prefill_request.release()
        self.settings.prefill_policy.release()

    def _start(self, arrival: Arrival) -> Request | None:
        num_tokens = 0
        try:
            tokens = prompt_token_ids(self.tokenizer, arrival.prompt.content, self.model.config)
            num_tokens = len(tokens)
            arrival = replace(arrival, prompt=replace(arrival.prompt, content=tokens))
            limit, clock = self.settings.max_seq_len, self.settings.clock
            return Request(self.model, self.tokenizer, arrival, max_seq_len=limit, clock=clock)
        except UserError as error:
            self._publish([DoneEvent(arrival.refused(error, num_tokens))])
            return None

    def _launch_next(self, step: DecodeStep) -> DecodeStep | None:
        prefill = self.pending_prefill_request
        joins = prefill is not None and prefill.is_prefill_done
        return step.launch_next(self.decode_requests) if self.async_scheduling and not joins else None

    def _remove_ended(self) -> None:
        # From the last row down, so that the row that fills a gap was already checked.
        for row in reversed(range(len(self.decode_requests))):
            if self.decode_requests[row].answer.is_done:
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
            self.settings.on_event(event)


def batch_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int] | Prompt],
    **keywords: Any,
) -> list[Completion]:
    """Answer every prompt; return one completion per prompt, in prompt order.

    The keywords are the fields of `BatchSettings`, such as max_seq_len=512, batch_size=5, prefill_step=128.
    Each iteration has three phases: one prefill chunk, one decode step for all active requests, and the move
    of a finished prefill into a free row. If there are fewer prompts than `batch_size`, their number (or 1)
    is used instead. Without `on_event`, `ReportRefused` reports refused prompts on stderr in one line.

    Does not change `prompts`. A prompt that can't be served (empty, longer than max_seq_len) becomes a
    completion with finish_reason "error" and its number of tokens, and does not affect other prompts. All
    cache memory is freed at the end, even after an exception. Raises UserError if a setting is out of range
    or `prompts` is a string.
    """
    settings = BatchSettings(on_event=ReportRefused(len(prompts))).updated(**keywords)
    rows = min(settings.batch_size, max(1, len(prompts)))  # a row costs memory, used or not
    run = BatchGenerator(model, tokenizer, prompts, replace(settings, batch_size=rows))
    try:
        while run.has_work_remaining():
            if not any([run.handle_prefill_phase(), run.handle_decode_phase(), run.move_prefill_to_decode()]):
                run.wait_for_arrival()
    finally:
        run.release()
    return run.collect_results()
