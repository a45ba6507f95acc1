"""Continuous batching with chunked prefill: a loop of one chunk, one decode step and one move."""

from collections.abc import Sequence
from typing import Any

from tiny_llm_lab.types import Completion, Model, Prompt, Tokenizer


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
