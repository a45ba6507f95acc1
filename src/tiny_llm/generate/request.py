"""One request of week 2: its answer, and its KV cache, which is filled chunk by chunk."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import Arrival, Clock, Event, Memory, Model, SamplingParams, Tokenizer


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
        """
        raise NotImplementedError("task 2.6.3")

    @property
    def next_token(self) -> int | None:
        """The newest token of the answer, which the model has not seen yet; None before the first."""
        raise NotImplementedError("task 2.6.3")

    @property
    def is_prefill_done(self) -> bool:
        """Whether every prompt token is in the cache."""
        raise NotImplementedError("task 2.6.3")

    def try_prefill(self) -> int:
        """Compute one chunk of at most `prefill_max_step` prompt tokens, and return how many tokens it had.

        Appends the chunk to the cache at `offset`, materialises the cache and advances `offset`. Only the
        last chunk computes logits, and only for its last position. It samples the first token from them,
        which the answer then accepts. Raises ValueError if the prompt is already computed.
        """
        raise NotImplementedError("task 2.7.3")

    def decode_done(self, token: int) -> None:
        """Record a decode step: `next_token` is now in the cache, and `token` was sampled after it.

        Advances `offset` by one, and the answer accepts the token.
        """
        raise NotImplementedError("task 2.6.3")

    def release(self) -> None:
        """Free the cache's memory. You may call it twice."""
        raise NotImplementedError("task 2.6.3")


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """One decode step of several requests, launched first and read later."""

    model: Model
    kv_cache: Sequence[Memory]  # row i of every layer belongs to requests[i]
    requests: list[Request]
    sampled: mx.array  # [B] uint32, lazily

    @classmethod
    def launch(cls, model: Model, kv_cache: Sequence[Memory], requests: Sequence[Request]) -> "DecodeStep":
        """Launch one forward pass over the newest token of every request, without waiting for it.

        Row i of `kv_cache` belongs to requests[i]. The step has a copy of the list and changes no request.
        """
        raise NotImplementedError("task 2.6.3")

    def read(self) -> list[int]:
        """Wait for the step, and return the token of every request."""
        raise NotImplementedError("task 2.6.3")

    def launch_next(self, requests: Sequence[Request]) -> "DecodeStep | None":
        """Launch the next step before this step is read. Returns None if the next step is not certain.

        `requests` decode now. The next step is certain if they are this step's requests, row by row, and no
        limit makes the token that a request samples here its last. A request that ends here with an end
        token or a stop string still has a row in the next step, and its token there is discarded.
        """
        raise NotImplementedError("task 2.7.9")


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
    raise NotImplementedError("task 2.7.3")
