"""An answer as its chunks arrive: text, counts and the time of every token."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, dropwhile
from typing import Any, Final

from tiny_llm_lab.measure.load.record import CountedBy, Usage
from tiny_llm_lab.measure.traffic.request import CountTokens
from tiny_llm_lab.serving.openai_client import DONE, ServerError, error_message

MAX_TOKENS: Final = 10**6  # of one answer, whatever its server says
# Where servers put text: answers, reasoning (two names), and completions.
_TEXT_KEYS: Final = ("content", "reasoning_content", "reasoning")


@dataclass(frozen=True)
class Chunk:
    """One event with a choice in it."""

    time_s: float
    text: str


class Answer:
    """Collects the events of one streamed answer."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    def add(self, data: bytes, time_s: float) -> None:
        """Take the data of one event; raises ServerError for an error, or for data that is not a chunk."""
        if data.strip() == DONE:
            self.is_done = True
            return
        try:
            event: dict[str, Any] = json.loads(data)
            if error := event.get("error"):
                raise ServerError(error_message(error))
            for choice in (event.get("choices") or [])[:1]:
                self.chunks.append(Chunk(time_s, _text_of(choice)))
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.usage = _usage_of(event.get("usage")) or self.usage
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            raise ServerError(f"the server sent an event that is not a chunk: {_shown(data)}") from None

    def require_end(self) -> None:
        """Raise ServerError for a stream that ended before its answer did."""
        if not self.is_done and self.finish_reason is None:
            raise ServerError("the stream ended before the answer did")

    def token_times(self, count: CountTokens | None) -> tuple[tuple[float, ...], CountedBy]:
        """When each token was received, and who counted them.

        Chunks of one token each are taken as they are. Otherwise the tokens are shared out among the chunks
        that have text, by `count` of it (None: evenly), and those of one chunk have one time.
        """
        # A chat begins with a chunk that holds a role and no token.
        chunks = list(dropwhile(lambda chunk: not chunk.text, self.chunks)) or self.chunks[:1]
        with_text = [chunk for chunk in chunks if chunk.text] or chunks
        if self.usage is not None:
            return _spread(chunks, with_text, self.usage.completion_tokens, count), "usage"
        if count is not None:
            return _spread(chunks, with_text, count(self.text), count), "tokenizer"
        return tuple(chunk.time_s for chunk in with_text), "chunks"


def _spread(
    chunks: Sequence[Chunk], with_text: Sequence[Chunk], num_tokens: int, count: CountTokens | None
) -> tuple[float, ...]:
    for each in (with_text, chunks):  # of the latter, some hold tokens without text, such as the last
        if len(each) == num_tokens:
            return tuple(chunk.time_s for chunk in each)
    weights = [max(1, count(chunk.text)) if count else 1 for chunk in with_text]
    # Rounded up: the first chunk has the first token.
    ends = [math.ceil(num_tokens * part / sum(weights)) for part in accumulate(weights)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(chunk.time_s for chunk, size in zip(with_text, sizes, strict=True) for _ in range(size))


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or choice
    parts = [delta.get(key) or "" for key in _TEXT_KEYS] + [choice.get("text") or ""]
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or []]
    return "".join([*parts, *((call.get("name") or "") + (call.get("arguments") or "") for call in calls)])


def _usage_of(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    completion = min(int(usage.get("completion_tokens") or 0), MAX_TOKENS)
    cached = details.get("cached_tokens")
    return Usage(int(usage.get("prompt_tokens") or 0), completion, None if cached is None else int(cached))


def _shown(data: bytes) -> str:
    return data[:100].decode(errors="replace")
