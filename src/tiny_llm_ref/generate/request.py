"""One request of week 2: its answer, and its KV cache, which is filled chunk by chunk."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    Arrival,
    Clock,
    Event,
    Memory,
    Model,
    Prompt,
    SamplingParams,
    Tokenizer,
    UserError,
    Wanted,
    is_async_scheduling,
    prompt_token_ids,
    refuse_processors,
    require_room,
)

from .answer import Answer
from .chunking import chunk_spans
from .sampler import Sampler, sample_rows


class Request:
    """An answer, and its own KV cache, which stores `offset` tokens of prompt and answer."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int] | Arrival,
        prefill_max_step: int = 128,
        *,
        max_seq_len: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Tokenize `prompt` (token ids are taken as they are) and create an empty cache. Computes nothing.

        An `Arrival` as `prompt` has its own number, arrival and sampling parameters; otherwise the prompt is
        number 0, arrives now and is answered greedily. `prefill_max_step` is the most tokens one
        `try_prefill` computes, `max_seq_len` the most tokens the cache may store (None = the model's own
        limit). Sets model, answer (its `Answer`), prompt_idx, prefill_tokens, prefill_max_step, kv_cache,
        offset = 0, and sample, its `Sampler`.
        Raises UserError for a prompt that is empty, longer than max_seq_len or has a token outside the
        vocabulary, for a prefill_max_step below 1, and unless max_seq_len is 1 to the model's limit.
        From task 3.7.3 on: raises UserError also for anything that `refuse_processors` leaves to the engine.
        """
        if prefill_max_step < 1:
            raise UserError(f"prefill_step must be 1 or more, not {prefill_max_step}")
        limit = model.config.max_position_embeddings
        max_seq_len = limit if max_seq_len is None else max_seq_len
        if not 1 <= max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {max_seq_len}")
        arrival = prompt if isinstance(prompt, Arrival) else Arrival(0, Prompt(prompt), clock())
        sampling = arrival.prompt.sampling
        refuse_processors(sampling, arrival.prompt.processors)
        tokens = prompt_token_ids(tokenizer, arrival.prompt.content, model.config)
        require_room(len(tokens), max_seq_len, "max_seq_len")
        self.answer = Answer(tokenizer, arrival, tokens, max_seq_len, clock)
        self.model, self.prompt_idx = model, arrival.prompt_idx
        self.prefill_tokens, self.prefill_max_step = tokens, prefill_max_step
        self.kv_cache, self.offset = model.create_kv_cache(), 0
        self.sample = Sampler(sampling, model.ops)

    @property
    def next_token(self) -> int | None:
        """The newest token of the answer, which the model has not seen yet; None before the first."""
        return self.answer.next_token

    @property
    def is_prefill_done(self) -> bool:
        """Whether every prompt token is in the cache."""
        return self.offset >= len(self.prefill_tokens)

    def try_prefill(self) -> int:
        """Compute one chunk of at most `prefill_max_step` prompt tokens, and return how many tokens it had.

        Appends the chunk to the cache at `offset`, materialises the cache and advances `offset`. Only the
        last chunk computes logits, and only for its last position. It samples the first token from them,
        which the answer then accepts. Raises ValueError if the prompt is already computed.
        """
        if self.is_prefill_done:
            raise ValueError("the prompt is already computed")
        num_tokens = len(self.prefill_tokens)
        start, end = next(chunk_spans(num_tokens, self.prefill_max_step, self.offset))
        is_last = end == num_tokens
        chunk = mx.array([self.prefill_tokens[start:end]])
        logits = self.model(chunk, start, self.kv_cache, wanted=Wanted(last=int(is_last)))
        # MLX is lazy. Without this, the graphs of all chunks would pile up until the last chunk.
        for layer in self.kv_cache:
            layer.materialize()
        self.offset = end
        # Read the token before the event, because reading it computes the rest of the last chunk.
        token = cast(int, self.sample(logits[:, -1], end).item()) if is_last else None
        self.answer.prefilled(end)
        if token is not None:
            self.answer.accept(token)
        return end - start

    def decode_done(self, token: int) -> None:
        """Record a decode step: `next_token` is now in the cache, and `token` was sampled after it.

        Advances `offset` by one, and the answer accepts the token.
        """
        self.offset += 1
        self.answer.accept(token)

    def release(self) -> None:
        """Free the cache's memory. You may call it twice."""
        for layer in self.kv_cache:
            layer.release()


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """One decode step of several requests, launched first and read later."""

    model: Model
    kv_cache: Sequence[Memory]  # row i of every layer belongs to requests[i]
    requests: list[Request]
    sampled: mx.array  # [B] uint32, lazily

    @classmethod
    def launch(
        cls,
        model: Model,
        kv_cache: Sequence[Memory],
        requests: Sequence[Request],
        previous: "DecodeStep | None" = None,
    ) -> "DecodeStep":
        """Launch one forward pass over the newest token of every request, without waiting for it.

        Row i of `kv_cache` belongs to requests[i]. The step has a copy of the list and changes no request.
        From task 2.7.9 on: `previous` is the last step, of the same requests and not read yet. The input of
        each request is the token that it samples there, one position later.
        """
        known = [request.next_token for request in requests]
        tokens = mx.array(known) if previous is None else previous.sampled.astype(mx.int32)
        num_pending = 0 if previous is None else 1  # tokens of each request that are not known yet
        offsets = kv_cache[0].offsets(len(requests))
        logits = model(tokens[:, None], offsets, kv_cache, wanted=Wanted(last=1))[:, -1]
        parts = [(request.sample, request.answer.num_tokens + num_pending, 1) for request in requests]
        sampled = sample_rows(logits, parts)
        mx.async_eval(sampled)
        return cls(model, kv_cache, list(requests), sampled)

    def read(self) -> list[int]:
        """Wait for the step, and return the token of every request."""
        return cast(list[int], self.sampled.tolist())

    def launch_next(self, requests: Sequence[Request]) -> "DecodeStep | None":
        """Launch the next step before this step is read. Returns None if the next step is not certain.

        `requests` decode now. The next step is certain if they are this step's requests, row by row, and no
        limit makes the token that a request samples here its last. A request that ends here with an end
        token or a stop string still has a row in the next step, and its token there is discarded.
        """
        is_certain = self.requests == requests and all(r.answer.max_draft_tokens > 0 for r in requests)
        return self.launch(self.model, self.kv_cache, requests, self) if is_certain else None


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

    `async_scheduling` (from task 2.7.9 on) launches a decode step before the previous step is read; None
    means only on a GPU. The events are the same. Raises UserError for a prompt or setting that can't be
    served. The cache's memory is freed when the iterator ends or is closed.
    """
    arrival = Arrival(0, Prompt(prompt, sampling), time.perf_counter())
    request = Request(model, tokenizer, arrival, prefill_step, max_seq_len=max_seq_len)
    ahead: DecodeStep | None = None  # launched, and not yet read
    try:
        while not request.answer.is_done:
            if not request.is_prefill_done:
                request.try_prefill()
            else:
                step = ahead or DecodeStep.launch(model, request.kv_cache, [request])
                ahead = step.launch_next([request]) if is_async_scheduling(async_scheduling) else None
                request.decode_done(*step.read())
            yield from request.answer.take_events()
    finally:
        request.release()
