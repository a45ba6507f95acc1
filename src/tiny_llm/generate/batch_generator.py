"""The state of one batch: prompts that wait, one prompt in prefill, and requests that decode together."""

from collections.abc import Sequence

from tiny_llm_lab.types import BatchSettings, Completion, Model, Prompt, Tokenizer


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
        raise NotImplementedError("task 2.6.4")

    def has_work_remaining(self) -> bool:
        """Whether any request waits (in the queue or with the policy), is in prefill, or decodes."""
        raise NotImplementedError("task 2.6.4")

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the prompt that the prefill policy selects; return whether anything was done.

        Does not ask the policy while batch_size requests decode, so that a row is free when a prompt is
        ready. A prompt that can't be served ends with the completion that `Arrival.refused` returns. The size
        of the chunk is `next_chunk_size`; 0 means no chunk. The chunk is reported to chunk_policy and
        metrics.
        """
        raise NotImplementedError("task 2.7.4")

    def handle_decode_phase(self) -> bool:
        """Compute one token for every active request in one forward pass. Ended requests leave the batch.

        Returns whether there was anything to decode.
        """
        raise NotImplementedError("task 2.6.4")

    def move_prefill_to_decode(self) -> bool:
        """Give a row of the batch to a request whose prompt is computed; return whether one moved.

        A request that ended with its first token leaves without taking a row.
        """
        raise NotImplementedError("task 2.7.4")

    def wait_for_arrival(self) -> None:
        """Sleep a little if the next request has not arrived. Call it when no phase made progress."""
        raise NotImplementedError("task 2.7.4")

    def collect_results(self) -> list[Completion]:
        """Returns all completions so far, in prompt order."""
        raise NotImplementedError("task 2.6.4")

    def release(self) -> None:
        """Free all cache memory, in any state of the run."""
        raise NotImplementedError("task 2.6.4")
