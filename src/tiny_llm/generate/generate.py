"""One prompt, one answer: the plain loop, the loop with a KV cache, and the text that comes out."""

from collections.abc import Iterator, Sequence

from tiny_llm_lab.types import Detokenizer, Model, TokenEvent, Tokenizer

from .sampler import Sampler


class TextStream:
    """Turns tokens into text that may be shown at once, and watches for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        """`detokenizer` is new; `stop` strings end the text just before the first of them to appear.

        Sets text = "", all that was released so far, and stopped = False.
        """
        raise NotImplementedError("task 1.6.1")

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain to be part of the answer.

        Text that could be the beginning of a stop string is held back until it is decided, also when
        the string spreads over many tokens. After a stop string `stopped` is True and nothing follows.
        """
        raise NotImplementedError("task 1.6.1")

    def finish(self) -> str:
        """The rest of the text, when no token follows: held-back text and unfinished characters."""
        raise NotImplementedError("task 1.6.1")


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
    token or after `max_tokens`. Text held back at the end comes as a last event without a token.
    `sampler` None is greedy. Raises ValueError for a prompt without tokens.
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
