"""Continuous batching with chunked prefill: the state of one batch, and a loop of its three phases."""

from collections.abc import Sequence
from typing import Any

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
    raise NotImplementedError("task 2.7.7")
