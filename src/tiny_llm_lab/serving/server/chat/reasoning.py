"""<think>...</think> at the beginning of an answer, split off while it arrives."""

from enum import Enum, auto
from typing import Final

from tiny_llm_lab.serving.server.chat.parsed import num_held

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class _Place(Enum):
    START = auto()  # nothing but blanks so far
    REASONING = auto()
    GAP = auto()  # between the end of the reasoning and the first word behind it
    ANSWER = auto()


class ReasoningParser:
    """Splits one answer into (reasoning, rest); blanks around the reasoning belong to neither."""

    def __init__(self, is_open: bool) -> None:
        """`is_open`: the prompt ends with <think>."""
        self._place = _Place.REASONING if is_open else _Place.START
        self._held = ""
        self._is_first = True  # nothing of the reasoning was given out

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun, so that all text is the rest."""
        return self._place is _Place.ANSWER

    def feed(self, text: str) -> tuple[str, str]:
        """What `text` makes certain."""
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            self._leave_start()
        if self._place is _Place.REASONING:
            reasoning = self._take_reasoning()
        if self._place is _Place.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        return reasoning, self._take_all() if self._place is _Place.ANSWER else ""

    def finish(self) -> tuple[str, str]:
        """The rest, when no text follows."""
        if self._place is _Place.REASONING:
            return self._trimmed(self._take_all()).rstrip(), ""
        return "", self._take_all()

    def _leave_start(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self._place, self._held = _Place.REASONING, begun.removeprefix(OPEN)
        elif not OPEN.startswith(begun):
            self._place = _Place.ANSWER

    def _take_reasoning(self) -> str:
        reasoning, close, rest = self._held.partition(CLOSE)
        if close:
            self._place, self._held = _Place.GAP, rest
            return self._trimmed(reasoning.rstrip())
        certain = self._held[: len(self._held) - num_held(self._held, CLOSE)].rstrip()
        self._held = self._held[len(certain) :]
        return self._trimmed(certain)

    def _trimmed(self, reasoning: str) -> str:
        if self._is_first:
            reasoning = reasoning.lstrip()
        self._is_first = self._is_first and not reasoning
        return reasoning

    def _take_all(self) -> str:
        text, self._held = self._held, ""
        return text
