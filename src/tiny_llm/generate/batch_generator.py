"""The state of one batch: prompts that wait, one in prefill, and those that decode together."""

from collections.abc import Sequence

from tiny_llm_lab.types import BatchSettings, Completion, Model, Prompt, Tokenizer


class BatchGenerator:
    """Up to `batch_size` requests at a time: at most one in prefill, the others decoding together."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[str | Sequence[int] | Prompt],
        settings: BatchSettings,
    ) -> None:
        """Queue the prompts by arrival and begin a run of settings.prefill_policy; compute nothing.

        Sets settings, request_queue (the `Arrivals` that have not started), pending_prefill_request (None or
        the one request in prefill), decode_requests (the active ones, in the order of the batch cache's rows)
        and kv_cache (one BatchingKvCache per layer, as `batch_caches` makes it). Sets async_scheduling as
        `is_async_scheduling` says.
        Raises UserError as `BatchSettings.require_valid` does.
        """
        raise NotImplementedError("task 2.6.4")

    def has_work_remaining(self) -> bool:
        """True while any request waits, in the queue or with the policy, is in prefill or decodes."""
        raise NotImplementedError("task 2.6.4")

    def handle_prefill_phase(self) -> bool:
        """Compute one chunk of the prompt that the prefill policy selects; returns whether anything was done.

        A policy is not asked while batch_size requests decode, so that a slot is free when a prompt is ready.
        A prompt that cannot be served ends with a completion as `Arrival.refused` makes it. The size of the
        chunk is `next_chunk_size`; 0 leaves it out. chunk_policy and metrics are told of it.
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
