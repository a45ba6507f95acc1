"""One request: a prompt that is computed chunk by chunk, then an answer that grows token by token."""

import time
from collections.abc import Iterator, Sequence

from tiny_llm_lab.types import Clock, Completion, Event, Model, SamplingParams, Tokenizer


class Request:
    """A prompt on its way through prefill and decode; `offset` of its tokens are in its cache."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        prefill_max_step: int = 128,
        prompt_idx: int = 0,
        *,
        max_seq_len: int | None = None,
        sampling: SamplingParams = SamplingParams(),
        arrival_s: float | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Tokenize `prompt` (token ids are taken as they are) and create an empty cache; compute nothing.

        `prefill_max_step` is the most tokens one `try_prefill` computes, `max_seq_len` the most tokens
        the cache may hold (None = the model's own limit). `arrival_s` None means now, on `clock`.
        Sets prefill_tokens, prefill_max_step, prompt_idx, max_seq_len, sampling, kv_cache, sample (its own
        sampler), offset = 0, next_token = None, token_ids = [], finish_reason = None.
        Raises UserError for a prompt that is empty, longer than max_seq_len or has a token outside the
        vocabulary, for a step below 1, and unless max_seq_len is 1 to the model's limit.
        """
        raise NotImplementedError("task 2.6.2")

    @property
    def is_prefill_done(self) -> bool:
        """True once every prompt token is in the cache."""
        raise NotImplementedError("task 2.6.2")

    @property
    def is_done(self) -> bool:
        """True once nothing more will be generated."""
        raise NotImplementedError("task 2.6.2")

    def try_prefill(self) -> int:
        """Compute one chunk of at most `prefill_max_step` prompt tokens; return how many.

        Appends the chunk to the cache at `offset`, materialises the cache and advances `offset`. Only
        the last chunk computes logits, for its last position alone, and samples the first token from
        them, which `accept` then receives. Raises ValueError when the prompt is already computed.
        """
        raise NotImplementedError("task 2.7.3")

    def decode_done(self, token: int) -> None:
        """Take note of a decode step: `next_token` is in the cache now and `token` was sampled after it.

        Advances `offset` by one, then does what `accept(token)` does.
        """
        raise NotImplementedError("task 2.6.2")

    def accept(self, token: int) -> None:
        """Make a sampled token `next_token`, the newest of `token_ids`, and the next piece of the text.

        Ends the request with finish_reason "stop" at an end-of-sequence token (which is not kept, unless
        sampling.ignore_eos) or a stop string; with "length" at sampling.max_tokens or when the cache
        holds max_seq_len tokens, so that `token` could not be stored. Raises ValueError when ended.
        """
        raise NotImplementedError("task 2.6.2")

    def take_events(self) -> list[Event]:
        """What happened since the last call, oldest first: every chunk, every token, the end.

        The texts of the token events, joined, are the answer; text that was held back until the end
        comes in a TokenEvent without a token, just before the DoneEvent.
        """
        raise NotImplementedError("task 2.6.2")

    def text(self) -> str:
        """The answer so far, without end-of-sequence tokens, stop strings and held-back text."""
        raise NotImplementedError("task 2.6.2")

    def completion(self) -> Completion:
        """The result of an ended request. Raises ValueError before its end."""
        raise NotImplementedError("task 2.6.2")

    def release(self) -> None:
        """Give the cache's memory back; may be called twice."""
        raise NotImplementedError("task 2.6.2")


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampling: SamplingParams = SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
) -> Iterator[Event]:
    """Answer one prompt with chunked prefill, yielding every event as it happens, DoneEvent last.

    Raises UserError for a prompt or setting that cannot be served. The cache is given back when the
    iterator ends or is closed.
    """
    raise NotImplementedError("task 2.7.3")
