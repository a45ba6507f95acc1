"""A model's text, read while it arrives: reasoning, then content and tool calls."""

import math
from enum import Enum, auto
from itertools import takewhile

from tiny_llm_lab.serving.server.chat.json_call import CLOSE, OPEN
from tiny_llm_lab.serving.server.chat.parts import Part
from tiny_llm_lab.serving.server.chat.tool_calls import ToolCallParser
from tiny_llm_lab.types import FinishReason
from tiny_llm_lab.types.sampling import THINK, THINK_END


class _Place(Enum):
    START = auto()  # only blanks so far
    REASONING = auto()
    GAP = auto()  # between the end of the reasoning and the first word after it
    ANSWER = auto()


class ReasoningParser:
    """Splits one answer into (reasoning, rest); blanks around the reasoning belong to neither."""

    def __init__(self, is_open: bool) -> None:
        """`is_open`: the prompt ends with <think>."""
        self._place = _Place.REASONING if is_open else _Place.START
        self._held = ""
        self._is_first = True  # no reasoning was returned yet

    @property
    def is_open(self) -> bool:
        """Whether the reasoning goes on."""
        return self._place is _Place.REASONING

    @property
    def is_over(self) -> bool:
        """Whether the answer has begun, so that all further text is the rest."""
        return self._place is _Place.ANSWER

    def feed(self, text: str) -> tuple[str, str]:
        """The parts that are certain after `text`."""
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
        """The rest, at the end of the text."""
        if self._place is _Place.REASONING:
            return self._trimmed(self._take_all()).rstrip(), ""
        return "", self._take_all()

    def _leave_start(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(THINK):
            self._place, self._held = _Place.REASONING, begun.removeprefix(THINK)
        elif not THINK.startswith(begun):
            self._place = _Place.ANSWER

    def _take_reasoning(self) -> str:
        while self._is_first and (begun := self._held.lstrip()).startswith(THINK):
            self._held = begun.removeprefix(THINK)  # the prompt ends with one, and the model repeats it
        if self._is_first and THINK.startswith(self._held.lstrip()):
            return ""
        reasoning, close, rest = self._held.partition(THINK_END)
        if close:
            self._place, self._held = _Place.GAP, rest
            return self._trimmed(reasoning.rstrip())
        certain = self._held[: len(self._held) - _num_held(self._held, THINK_END)].rstrip()
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


def _num_held(text: str, tag: str) -> int:
    """How many of the last characters of `text` may be the beginning of `tag`."""
    return next(
        (size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag[:size] == text[-size:]), 0
    )


class AnswerParser:
    """Reads one answer; None leaves that part of it in the content.

    Calls at the end of thoughts that never close are calls as well.
    """

    def __init__(
        self, reasoning: ReasoningParser | None, tool_calls: ToolCallParser | None, is_one_call: bool = False
    ) -> None:
        """`is_one_call`: calls after the first are dropped."""
        self._reasoning, self._tool_calls = reasoning, tool_calls
        self._thoughts: list[str] = []
        self._num_calls, self._most_calls = 0, 1 if is_one_call else math.inf

    @property
    def is_plain(self) -> bool:
        """Whether all text from here on is content, at once."""
        return self._tool_calls is None and (self._reasoning is None or self._reasoning.is_over)

    def feed(self, text: str, finish: FinishReason | None = None) -> list[Part]:
        """What `text` makes certain; all of the rest if the answer ends with it, for the reason `finish`.

        A call that was begun is closed if the model has stopped, and stays open if the answer was cut.
        """
        reasoning, is_open = "", False
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text)
            is_open = self._reasoning.is_open
            if finish is not None:
                more, rest = self._reasoning.finish()
                reasoning, text = reasoning + more, text + rest
            self._thoughts.append(reasoning)
        if self._tool_calls is None:
            parts = [Part("content", text)]
        else:
            parts = self._tool_calls.feed(text)
            if finish is not None:
                parts += (
                    self._calls_in_thoughts(self._tool_calls)
                    if is_open
                    else self._tool_calls.finish(is_cut=finish != "stop")
                )
        return [
            each for each in (Part("reasoning", reasoning), *parts) if each.text and self._is_wanted(each)
        ]

    def _calls_in_thoughts(self, parser: ToolCallParser) -> list[Part]:
        """A model that forgets </think> calls where its thoughts end."""
        texts = "".join(self._thoughts).split(OPEN)[:0:-1]
        calls = list(takewhile(lambda text: text.partition(CLOSE)[1:] == (CLOSE, ""), map(str.rstrip, texts)))
        parts = parser.feed("".join(OPEN + text for text in reversed(calls))) + parser.finish()
        return [each for each in parts if each.kind != "content"]

    def _is_wanted(self, part: Part) -> bool:
        self._num_calls += part.kind == "call"
        return part.kind not in ("call", "arguments") or self._num_calls <= self._most_calls
