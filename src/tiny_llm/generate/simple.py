"""One prompt, one answer: a loop without and a loop with a KV cache."""

from collections.abc import Iterator

from tiny_llm_lab.types import Model, TokenEvent, Tokenizer

from .sampler import Sampler


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
    raise NotImplementedError("task 1.6.2")


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
    raise NotImplementedError("task 2.1.3")
