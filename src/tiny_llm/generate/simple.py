"""One prompt, one answer: the plain loop, and the loop with a KV cache."""

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

    Yields one event per sampled token with the text it releases; ends before the first end-of-sequence
    token or after `max_tokens`. Text held back at the end comes as a last event without a token. The events
    have prompt_idx 0 and the time of `time.perf_counter`. `sampler` is called with the last logits [1, V]
    and the number of tokens so far; None is greedy. Raises UserError for a prompt without tokens, as
    `prompt_token_ids` does.
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
    """As `simple_generate`, the same tokens, but the model sees each token once.

    The prompt is computed in one pass, then one token a step at its own offset.
    """
    raise NotImplementedError("task 2.1.3")
