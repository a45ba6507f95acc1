"""One request of week 2: an answer, and the KV cache in which its prompt is computed chunk by chunk."""

import time
from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    Clock,
    Event,
    KvCache,
    Model,
    SamplingParams,
    Tokenizer,
    UserError,
    is_async_scheduling,
    prompt_token_ids,
    refuse_processors,
    require_room,
)

from .answer import Answer
from .chunking import chunk_spans
from .sampler import Sampler, sample_rows


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
        From task 3.6.9 on: UserError also for sampling that `refuse_processors` leaves to the engine.
        """
        if prefill_max_step < 1:
            raise UserError(f"prefill_step must be 1 or more, not {prefill_max_step}")
        limit = model.config.max_position_embeddings
        max_seq_len = limit if max_seq_len is None else max_seq_len
        if not 1 <= max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
        refuse_processors(sampling)
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


class DecodeStep:
    """One token for each of several requests, which the device computes from the construction on."""

    def __init__(
        self,
        model: Model,
        kv_cache: Sequence[KvCache],
        requests: Sequence[Request],
        previous: "DecodeStep | None" = None,
    ) -> None:
        """Launch one forward pass over the newest token of every request; do not wait for it.

        Row i of `kv_cache` belongs to requests[i]. Sets model, kv_cache, requests (a copy) and sampled [B]
        uint32, lazily.
        From task 2.7.9 on: `previous` is the step in front, of the same requests and still unread: each takes
        the token that it samples there, one position further on.
        """
        self.model, self.kv_cache, self.requests = model, kv_cache, list(requests)
        num_pending = 0 if previous is None else 1  # tokens of each request that are not known yet
        known = [request.next_token for request in requests]
        tokens = mx.array(known) if previous is None else previous.sampled.astype(mx.int32)
        logits = model(tokens[:, None], kv_cache[0].offset, kv_cache, logits_to_keep=1)[:, -1]
        parts = [(request.sample, request.num_tokens + num_pending, 1) for request in requests]
        self.sampled: mx.array = sample_rows(logits, parts)
        mx.async_eval(self.sampled)

    def read(self) -> list[int]:
        """Wait for the step; the token of every request."""
        return cast(list[int], self.sampled.tolist())

    def launch_next(self, requests: Sequence[Request]) -> "DecodeStep | None":
        """Launch the step behind this one, which is not read yet; None when that is not certain.

        `requests` decode now. The next step is certain when they are those of this step, row by row, and no
        limit makes the token that one of them samples here its last. An answer that ends here by surprise
        has a row in the next step all the same, whose token is to be dropped.
        """
        is_certain = self.requests == requests and all(each.max_draft_tokens > 0 for each in requests)
        return DecodeStep(self.model, self.kv_cache, requests, previous=self) if is_certain else None


def stream_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampling: SamplingParams = SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
    async_scheduling: bool | None = None,
) -> Iterator[Event]:
    """Answer one prompt with chunked prefill, yielding every event as it happens, DoneEvent last.

    `async_scheduling` (from task 2.7.9 on) launches a decode step before the one in front is read; None
    does so on a GPU. The events are the same. Raises UserError for a prompt or setting that cannot be
    served. The cache is given back when the iterator ends or is closed.
    """
    request = Request(model, tokenizer, prompt, prefill_step, max_seq_len=max_seq_len, sampling=sampling)
    ahead: DecodeStep | None = None  # launched, and not yet read
    try:
        while not request.is_done:
            if not request.is_prefill_done:
                request.try_prefill()
            else:
                step = ahead or DecodeStep(model, request.kv_cache, [request])
                ahead = step.launch_next([request]) if is_async_scheduling(async_scheduling) else None
                request.decode_done(*step.read())
            yield from request.take_events()
    finally:
        request.release()
