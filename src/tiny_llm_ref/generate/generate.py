"""One prompt, one answer: the plain loop, the loop with a KV cache, and the text that comes out."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Detokenizer, Model, TokenEvent, Tokenizer, UserError

from .sampler import Sampler


class TextStream:
    """Turns tokens into text that may be shown at once, and watches for stop strings."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        """`detokenizer` is new; `stop` strings end the text just before the first of them to appear.

        Sets text = "", all that was released so far, and stopped = False.
        """
        self.text = ""
        self.stopped = False
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._held = ""

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain to be part of the answer.

        Text that could be the beginning of a stop string is held back until it is decided, also when
        the string spreads over many tokens. After a stop string `stopped` is True and nothing follows.
        """
        if self.stopped:
            return ""
        self._detokenizer.add_token(token)
        return self._release(self._detokenizer.last_segment, final=False)

    def finish(self) -> str:
        """The rest of the text, when no token follows: held-back text and unfinished characters."""
        if self.stopped:
            return ""
        self._detokenizer.finalize()
        return self._release(self._detokenizer.last_segment, final=True)

    def _release(self, segment: str, final: bool) -> str:
        pending = self._held + segment
        ends = [at for at in (pending.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            piece = pending[: min(ends)]
        else:
            keep = 0 if final else self._undecided(pending)
            piece, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        self.text += piece
        return piece

    def _undecided(self, pending: str) -> int:
        """Length of the longest end of `pending` that begins a stop string."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if pending.endswith(stop[:n]))
        return max(lengths, default=0)


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
    tokens = _encoded(tokenizer, prompt)

    def logits_after(token: int | None) -> mx.array:
        tokens.extend([] if token is None else [token])
        return model(mx.array([tokens]), logits_to_keep=1)

    return _generate(logits_after, tokenizer, sampler, max_tokens)


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
    cache = model.create_kv_cache()
    tokens = _encoded(tokenizer, prompt)
    offset = 0

    def logits_after(token: int | None) -> mx.array:
        nonlocal offset
        new = tokens if token is None else [token]
        logits = model(mx.array([new]), offset, cache, logits_to_keep=1)
        offset += len(new)
        return logits

    return _generate(logits_after, tokenizer, sampler, max_tokens)


def _generate(
    logits_after: Callable[[int | None], mx.array],
    tokenizer: Tokenizer,
    sampler: Sampler | None,
    max_tokens: int,
) -> Iterator[TokenEvent]:
    sample = sampler or (lambda logits: mx.argmax(logits, axis=-1))
    stream = TextStream(tokenizer.detokenizer)
    token: int | None = None
    for _ in range(max_tokens):
        token = cast(int, sample(logits_after(token)[:, -1]).item())
        if token in tokenizer.eos_token_ids:
            break
        yield TokenEvent(0, token, stream.push(token), time.perf_counter())
    if tail := stream.finish():
        yield TokenEvent(0, None, tail, time.perf_counter())


def _encoded(tokenizer: Tokenizer, prompt: str) -> list[int]:
    tokens = list(tokenizer.encode(prompt))
    if not tokens:
        raise UserError("the prompt is empty: give at least one token")
    return tokens
