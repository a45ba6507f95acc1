"""Finds the tokens, with their probabilities, that a piece of an answer's text was written with."""

from collections.abc import Sequence
from typing import Any

LogprobItem = dict[str, Any]  # as in OpenAI's API: token, logprob, bytes, top_logprobs


class TextScores:
    """Tokens that have come, until the text that they are comes too: a parser may hold it back."""

    def __init__(self) -> None:
        self._waiting: list[LogprobItem] = []

    def add(self, items: Sequence[LogprobItem]) -> None:
        """Add tokens, in their order."""
        self._waiting += items

    def taken(self, text: str) -> list[LogprobItem]:
        """The tokens of `text`; those before it, such as tags, are dropped. All if it is not theirs."""
        written = b"".join(bytes(each["bytes"]) for each in self._waiting)
        start, found = written.find(text.encode(errors="replace")), []
        end = len(written) if start < 0 else start + len(text.encode(errors="replace"))
        at = 0
        while self._waiting and at < end:
            item = self._waiting.pop(0)
            at += len(item["bytes"])
            if at > start:
                found.append(item)
        return found
