"""Continuous batching with chunked prefill: a loop of one chunk, one decode step and one move."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiny_llm_lab.types import (
    BatchSettings,
    Completion,
    Model,
    Prompt,
    ReportRefused,
    Tokenizer,
)

from .batch_generator import BatchGenerator


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
