"""One request: a prompt that is computed chunk by chunk, then an answer that grows token by token."""

import time
from collections.abc import Iterator, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import (
    Clock,
    Completion,
    DoneEvent,
    Event,
    FinishReason,
    Model,
    PrefillEvent,
    SamplingParams,
    Timing,
    TokenEvent,
    Tokenizer,
    UserError,
)

from .generate import TextStream
from .sampler import make_sampler


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
        self.model = model
        self.prompt_idx = prompt_idx
        self.prefill_tokens = list(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        self.prefill_max_step = prefill_max_step
        limit = model.config.max_position_embeddings
        self.max_seq_len = limit if max_seq_len is None else max_seq_len
        self._reject_bad_input()
        self.sampling = sampling
        self.kv_cache = model.create_kv_cache()
        self.offset = 0
        self.next_token: int | None = None
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.sample = make_sampler(
            sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed
        )
        self._clock = clock
        self._arrival_s = clock() if arrival_s is None else arrival_s
        self._token_s: list[float] = []
        self._events: list[Event] = []
        self._eos = frozenset() if sampling.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._stream = TextStream(tokenizer.detokenizer, sampling.stop)

    @property
    def is_prefill_done(self) -> bool:
        """True once every prompt token is in the cache."""
        return self.offset >= len(self.prefill_tokens)

    @property
    def is_done(self) -> bool:
        """True once nothing more will be generated."""
        return self.finish_reason is not None

    def try_prefill(self) -> int:
        """Compute one chunk of at most `prefill_max_step` prompt tokens; return how many.

        Appends the chunk to the cache at `offset`, materialises the cache and advances `offset`. Only
        the last chunk computes logits, for its last position alone, and samples the first token from
        them, which `accept` then receives. Raises ValueError when the prompt is already computed.
        """
        if self.is_prefill_done:
            raise ValueError("the prompt is already computed")
        chunk = self.prefill_tokens[self.offset : self.offset + self.prefill_max_step]
        is_last = self.offset + len(chunk) == len(self.prefill_tokens)
        logits = self.model(mx.array([chunk]), self.offset, self.kv_cache, logits_to_keep=int(is_last))
        # MLX is lazy: without this the graphs of all chunks would pile up until the last one.
        for layer in self.kv_cache:
            layer.materialize()
        self.offset += len(chunk)
        # Before the event: reading the token is what computes the rest of the last chunk.
        token = cast(int, self.sample(logits[:, -1]).item()) if is_last else None
        self._events.append(
            PrefillEvent(self.prompt_idx, self.offset, len(self.prefill_tokens), self._clock())
        )
        if token is not None:
            self.accept(token)
        return len(chunk)

    def decode_done(self, token: int) -> None:
        """Take note of a decode step: `next_token` is in the cache now and `token` was sampled after it.

        Advances `offset` by one, then does what `accept(token)` does.
        """
        self.offset += 1
        self.accept(token)

    def accept(self, token: int) -> None:
        """Make a sampled token `next_token`, the newest of `token_ids`, and the next piece of the text.

        Ends the request with finish_reason "stop" at an end-of-sequence token (which is not kept, unless
        sampling.ignore_eos) or a stop string; with "length" at sampling.max_tokens or when the cache
        holds max_seq_len tokens, so that `token` could not be stored. Raises ValueError when ended.
        """
        if self.is_done:
            raise ValueError("the request has ended")
        if token in self._eos:
            self._end("stop")
            return
        self.next_token = token
        self.token_ids.append(token)
        self._token_s.append(self._clock())
        self._events.append(TokenEvent(self.prompt_idx, token, self._stream.push(token), self._token_s[-1]))
        if self._stream.stopped:
            self._end("stop")
        elif len(self.token_ids) == self.sampling.max_tokens or self.offset >= self.max_seq_len:
            self._end("length")

    def take_events(self) -> list[Event]:
        """What happened since the last call, oldest first: every chunk, every token, the end.

        The texts of the token events, joined, are the answer; text that was held back until the end
        comes in a TokenEvent without a token, just before the DoneEvent.
        """
        events, self._events = self._events, []
        return events

    def text(self) -> str:
        """The answer so far, without end-of-sequence tokens, stop strings and held-back text."""
        return self._stream.text

    def completion(self) -> Completion:
        """The result of an ended request. Raises ValueError before its end."""
        if self.finish_reason is None:
            raise ValueError("the request has not ended")
        timing = Timing(self._arrival_s, tuple(self._token_s))
        return Completion(
            prompt_idx=self.prompt_idx,
            num_prompt_tokens=len(self.prefill_tokens),
            token_ids=tuple(self.token_ids),
            text=self.text(),
            finish_reason=self.finish_reason,
            timing=timing,
        )

    def release(self) -> None:
        """Give the cache's memory back; may be called twice."""
        for layer in self.kv_cache:
            layer.release()

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if tail := self._stream.finish():
            self._events.append(TokenEvent(self.prompt_idx, None, tail, self._clock()))
        self._events.append(DoneEvent(self.completion()))

    def _reject_bad_input(self) -> None:
        length, limit = len(self.prefill_tokens), self.model.config.max_position_embeddings
        if self.prefill_max_step < 1:
            raise UserError(f"prefill_step must be 1 or more, not {self.prefill_max_step}")
        if length == 0:
            raise UserError("the prompt is empty: give at least one token")
        if not 1 <= self.max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {self.max_seq_len}")
        if length > self.max_seq_len:
            raise UserError(
                f"the prompt has {length} tokens but max_seq_len is {self.max_seq_len}: "
                "shorten it or raise the limit"
            )
        if not all(0 <= token < self.model.config.vocab_size for token in self.prefill_tokens):
            raise UserError("the prompt has a token id outside the vocabulary: use this model's tokenizer")


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
                request.decode_done(cast(int, request.sample(logits[:, -1]).item()))
            yield from request.take_events()
    finally:
        request.release()
