"""The state of one batch: prompts that wait, one in prefill, and those that decode together."""

import time
from collections.abc import Sequence

from tiny_llm_lab.types import (
    ChunkPolicy,
    Clock,
    Completion,
    EventCallback,
    Model,
    PrefillMetrics,
    Prompt,
    SamplingParams,
    Tokenizer,
)


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
        raise NotImplementedError("task 2.6.4")

    def has_work_remaining(self) -> bool:
        """True while any request waits, is in prefill, paused or decodes."""
        raise NotImplementedError("task 2.6.4")

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the pending request; without one, start the next that has arrived.

        A request starts only while fewer than batch_size decode, so that a slot is free when it is ready. A
        prompt that cannot be served ends with a completion as `Arrival.refused` makes it. A chunk policy may
        set its size; 0 pauses the prefill while requests decode. Returns whether anything was done.
        """
        raise NotImplementedError("task 2.7.4")

    def handle_decode_phase(self) -> bool:
        """One token for every active request in one forward pass; those that end leave the batch.

        Returns whether there was anything to decode.
        """
        raise NotImplementedError("task 2.6.4")

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
        raise NotImplementedError("task 2.6.4")

    def release(self) -> None:
        """Give all cache memory back, whatever state the run is in."""
        raise NotImplementedError("task 2.6.4")
