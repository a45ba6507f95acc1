"""Continuous batching with chunked prefill: one chunk, one decode step, one move, over and over."""

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


def batch_generate(
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
) -> list[Completion]:
    """Answer every prompt; return one completion per prompt, in prompt order.

    Each iteration has three phases: one prefill chunk of at most `prefill_step` tokens, one decode step
    for all active requests, and the move of a finished prefill into a free slot. At most `batch_size`
    requests hold cache memory, none more than `max_seq_len` tokens of it; with fewer prompts than that,
    `batch_size` counts as their number (1 without any). `prefill_step` None leaves the size of a chunk to
    `select_optimal_chunk_size`, with `prefill_memory` bytes (None = any) for a chunk.
    `chunk_policy` may change every chunk's size; it and `metrics` are told how long chunks and decode
    steps took. `sampling` serves prompts that bring none of their own. `on_event` is called with every chunk,
    token and end as it happens; without it, refused prompts are reported on stderr in one line.
    `async_scheduling` (from task 2.7.9 on) launches a decode step before the one in front is read; None does
    so on a GPU. Events and completions are the same.

    `prompts` is not changed. A prompt that cannot be served (empty, longer than max_seq_len) becomes a
    completion with finish_reason "error" and the number of its tokens; other prompts are not affected. All
    cache memory is given back at the end, also after an exception. Raises UserError when a setting is out of
    range or `prompts` is a string.
    """
    raise NotImplementedError("task 2.7.7")
