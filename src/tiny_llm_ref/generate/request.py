"""One request of week 2: an answer, and the KV cache in which its prompt is computed chunk by chunk."""

import time
from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    Clock,
    Event,
    Model,
    SamplingParams,
    Tokenizer,
    UserError,
    prompt_token_ids,
    require_room,
)

from .answer import Answer
from .chunking import chunk_spans
from .sampler import Sampler


class Request(Answer):
    """An answer with a KV cache of its own; `offset` tokens of prompt and answer are in that cache."""

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
        the cache may hold (None = the model's own limit). Sets, besides what `Answer` sets, model,
        prefill_tokens, prefill_max_step, kv_cache, offset = 0, and sample, its `Sampler`.
        Raises UserError for a prompt that is empty, longer than max_seq_len or has a token outside the
        vocabulary, for a step below 1, and unless max_seq_len is 1 to the model's limit.
        """
        if prefill_max_step < 1:
            raise UserError(f"prefill_step must be 1 or more, not {prefill_max_step}")
        limit = model.config.max_position_embeddings
        max_seq_len = limit if max_seq_len is None else max_seq_len
        if not 1 <= max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
        tokens = prompt_token_ids(tokenizer, prompt, model.config)
        require_room(len(tokens), max_seq_len, "max_seq_len")
        super().__init__(
            tokenizer, tokens, sampling, max_seq_len, prompt_idx=prompt_idx, arrival_s=arrival_s, clock=clock
        )
        self.model = model
        self.prefill_tokens = tokens
        self.prefill_max_step = prefill_max_step
        self.kv_cache = model.create_kv_cache()
        self.offset = 0
        self.sample = Sampler(sampling, model.ops)

    @property
    def is_prefill_done(self) -> bool:
        """True once every prompt token is in the cache."""
        return self.offset >= len(self.prefill_tokens)

    def try_prefill(self) -> int:
        """Compute one chunk of at most `prefill_max_step` prompt tokens; return how many.

        Appends the chunk to the cache at `offset`, materialises the cache and advances `offset`. Only
        the last chunk computes logits, for its last position alone, and samples the first token from
        them, which `accept` then receives. Raises ValueError when the prompt is already computed.
        """
        if self.is_prefill_done:
            raise ValueError("the prompt is already computed")
        num_tokens = len(self.prefill_tokens)
        start, end = next(chunk_spans(num_tokens, self.prefill_max_step, self.offset))
        is_last = end == num_tokens
        chunk = mx.array([self.prefill_tokens[start:end]])
        logits = self.model(chunk, start, self.kv_cache, logits_to_keep=int(is_last))
        # MLX is lazy: without this the graphs of all chunks would pile up until the last one.
        for layer in self.kv_cache:
            layer.materialize()
        self.offset = end
        # Before the event: reading the token is what computes the rest of the last chunk.
        token = cast(int, self.sample(logits[:, -1], end).item()) if is_last else None
        self.prefilled(end)
        if token is not None:
            self.accept(token)
        return end - start

    def decode_done(self, token: int) -> None:
        """Record a decode step: `next_token` is in the cache now and `token` was sampled after it.

        Advances `offset` by one, then does what `accept(token)` does.
        """
        self.offset += 1
        self.accept(token)

    def release(self) -> None:
        """Give the cache's memory back; may be called twice."""
        for layer in self.kv_cache:
            layer.release()


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
    request = Request(model, tokenizer, prompt, prefill_step, max_seq_len=max_seq_len, sampling=sampling)
    try:
        while not request.is_done:
            if not request.is_prefill_done:
                request.try_prefill()
            else:
                tokens = mx.array([[request.next_token]])
                logits = model(tokens, request.offset, request.kv_cache, logits_to_keep=1)
                request.decode_done(cast(int, request.sample(logits[:, -1], request.num_tokens).item()))
            yield from request.take_events()
    finally:
        request.release()
