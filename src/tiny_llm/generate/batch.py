"""Continuous batching with chunked prefill: one chunk, one decode step, one move, over and over."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import Clock, Completion, EventCallback, Model, Prompt, SamplingParams, Tokenizer


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
        raise NotImplementedError("task 2.6.3")

    def has_work_remaining(self) -> bool:
        """True while any request waits, is in prefill or decodes."""
        raise NotImplementedError("task 2.6.3")

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the pending request; without one, start the next that has arrived.

        A request starts only while fewer than batch_size decode, so that a slot is free when it is
        ready. A prompt that cannot be served ends with an error completion of its own. Returns whether
        anything was done.
        """
        raise NotImplementedError("task 2.7.4")

    def handle_decode_phase(self) -> bool:
        """One token for every active request in one forward pass; those that end leave the batch.

        Returns whether there was anything to decode.
        """
        raise NotImplementedError("task 2.6.3")

    def move_prefill_to_decode(self) -> bool:
        """Give a request whose prompt is computed a row of the batch; returns whether one moved.

        A request that ended with its first token leaves without taking a row.
        """
        raise NotImplementedError("task 2.7.4")

    def wait_for_arrival(self) -> None:
        """Sleep a little when the next request has not arrived; call when no phase made progress."""
        raise NotImplementedError("task 2.7.4")

    def collect_results(self) -> list[Completion]:
        """Every completion so far, in prompt order."""
        raise NotImplementedError("task 2.6.3")

    def release(self) -> None:
        """Give all cache memory back, whatever state the run is in."""
        raise NotImplementedError("task 2.6.3")


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
    raise NotImplementedError("task 2.7.4")
