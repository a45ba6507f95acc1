"""One prompt, one answer: a loop without and a loop with a KV cache."""

import time
from collections.abc import Callable, Iterator
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Model, TokenEvent, Tokenizer, Wanted, prompt_token_ids

from .sampler import Sampler
from .text_stream import TextStream


def simple_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 256,
) -> Iterator[TokenEvent]:
    """Generate an answer without a cache: every step runs the model on all tokens so far.

    Yields one event per sampled token, with the text it releases. Ends before the first end-of-sequence
    token or after `max_tokens`. Text held back at the end comes in a last event without a token. The events
    have prompt_idx 0 and the time of `time.perf_counter`. `sampler` is called with the last logits [1, V]
    and the number of tokens so far; None is greedy. Raises UserError for a prompt without tokens, like
    `prompt_token_ids`.
    """
    tokens = prompt_token_ids(tokenizer, prompt, model.config)

    def logits_after(token: int | None) -> mx.array:
        tokens.extend([] if token is None else [token])
        return model(mx.array([tokens]), wanted=Wanted(last=1))

    return _generate(logits_after, tokenizer, sampler or Sampler(), len(tokens), max_tokens)


def simple_generate_with_kv_cache(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 256,
) -> Iterator[TokenEvent]:
    """Like `simple_generate`, with the same tokens, but the model sees each token once.

    The prompt is computed in one pass, then one token per step at its own offset.
    """
    cache = model.create_kv_cache()
    tokens = prompt_token_ids(tokenizer, prompt, model.config)
    offset = 0

    def logits_after(token: int | None) -> mx.array:
        nonlocal offset
        new = tokens if token is None else [token]
        logits = model(mx.array([new]), offset, cache, wanted=Wanted(last=1))
        offset += len(new)
        return logits

    return _generate(logits_after, tokenizer, sampler or Sampler(), len(tokens), max_tokens)


def _generate(
    logits_after: Callable[[int | None], mx.array],
    tokenizer: Tokenizer,
    sampler: Sampler,
    num_prompt_tokens: int,
    max_tokens: int,
) -> Iterator[TokenEvent]:
    stream = TextStream(tokenizer.detokenizer)
    token: int | None = None
    for position in range(num_prompt_tokens, num_prompt_tokens + max_tokens):
        token = cast(int, sampler(logits_after(token)[:, -1], position).item())
        if token in tokenizer.eos_token_ids:
            break
        yield TokenEvent(0, token, stream.push(token), time.perf_counter())
    if tail := stream.finish():
        yield TokenEvent(0, None, tail, time.perf_counter())
