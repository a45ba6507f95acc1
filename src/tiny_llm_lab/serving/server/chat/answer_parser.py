"""A model's text, read while it arrives: reasoning, then content and tool calls."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Any, Final, Literal

from tiny_llm_lab.serving.server.chat.json_call import CLOSE, OPEN, JsonCall, UnfinishedCallError, parse_call
from tiny_llm_lab.serving.server.chat.tagged_call import FUNCTION, TaggedCall, may_begin, stopped
from tiny_llm_lab.types import FinishReason
from tiny_llm_lab.types.sampling import THINK, THINK_END

PartKind = Literal["reasoning", "content", "call", "arguments"]


@dataclass(frozen=True)
class Part:
    """A piece: "call" names the function of a new call, "arguments" is more JSON text of the last one's.

    Arguments end with the brace that closes them; those of a call that was cut, or that the model wrote
    wrong, are no JSON.
    """

    kind: PartKind
    text: str


_PYTHON_TAG: Final = "<|python_tag|>"  # Llama 3 may begin a call so
_FUNCTION_FORMS: Final = (f"{FUNCTION}{{}}>", f'{FUNCTION}"{{}}">', '<function name="{}">')
Schemas = Mapping[str, Mapping[str, Any]]  # a JSON schema of the arguments, by function name


class ToolCallParser:
    """Splits one answer into content and calls.

    A text in a call's tags is a call once it names a function and begins its arguments or ends there,
    whatever follows; before that, or if it never does, it is content. Qwen3-Coder forgets <tool_call>:
    <function=...> of a function that it may call begins one too, on a line of its own. Blanks before,
    between and after calls belong to none of them.
    """

    def __init__(self, schemas: Schemas, is_open: bool = False, may_be_bare: bool = False) -> None:
        """`schemas` by function name; `is_open`: the answer is a call from its first letter, by its form.

        `may_be_bare`: an answer or a line after a call that begins with the JSON of one is a call, as
        Llama 3 writes them.
        """
        self._schemas, self._is_forced, self._may_be_bare = schemas, is_open, may_be_bare
        names = [name for name in schemas if re.fullmatch(r"[^<>\s]+", name)]
        quoted = (form.format(name) for name in names for form in _FUNCTION_FORMS)
        self._tags = (OPEN, CLOSE, *quoted)
        self._tag = re.compile("|".join(map(re.escape, self._tags)))
        self._is_in_line = False  # after a word in the line
        self._is_in_call = is_open
        self._reader: JsonCall | TaggedCall | None = None  # of a call whose function is known
        self._open = "" if is_open else OPEN  # the call that the text is in
        self._held = ""
        self._num_read = 0  # in the held text of a call; the call does not end before it
        self._blanks: str | None = ""  # held until a word follows; None between words
        self._has_calls = False

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after `text`."""
        self._held += text
        parts: list[Part] = []
        while True:
            if self._reader is not None:
                more, is_progress = self._next_arguments(self._reader)
            else:
                more, is_progress = self._next_head() if self._is_in_call else self._next_content()
            parts += more
            if not is_progress:
                return [each for each in parts if each.text]

    def finish(self, is_cut: bool = False) -> list[Part]:
        """The rest, at the end of the text; a call that was begun is closed unless it `is_cut`."""
        text, self._held = self._held, ""
        if self._reader is not None:
            return [Part("arguments", self._reader.finish(is_cut))]
        if self._is_in_call:
            begun = TaggedCall.begun(stopped(text), self._schemas)
            if name := begun[0] if begun else JsonCall.named(text, self._schemas):
                return _parts(name, "" if is_cut else "{}")
            try:
                call = parse_call(text)
            except UnfinishedCallError:
                call = None
            if call is not None:
                return _parts(*call)
            if self._is_forced and not self._has_calls:
                # It was cut before it said more than we know.
                return [Part("call", name) for name in self._schemas] if len(self._schemas) == 1 else []
            text = self._open + text
        content = self._worded(text)
        return content if self._has_calls else [*content, Part("content", self._blanks or "")]

    def _next_bare(self) -> tuple[list[Part], bool] | None:
        """A call without tags, or nothing as long as there may be one; None if there is none."""
        text = self._held.lstrip("; \n").removeprefix(_PYTHON_TAG)
        begun = JsonCall.begun(text)
        if begun is not None and begun[0] in self._schemas:
            self._open, self._held, self._is_in_call = "", text, True
            return [], True
        if JsonCall.may_begin(text) or _PYTHON_TAG.startswith(text):
            return [], False
        self._may_be_bare = False
        return None

    def _next_content(self) -> tuple[list[Part], bool]:
        if self._may_be_bare and (found := self._next_bare()) is not None:
            return found
        for tag in self._tag.finditer(self._held):
            before, rest = self._held[: tag.start()], self._held[tag.end() :]
            if tag[0] == CLOSE:
                if self._has_calls and self._blanks is not None and not before.strip():
                    self._held, self._blanks = rest, ""  # it closes the call, which its function ended
                    return [], True
                continue
            is_bare = tag[0] != OPEN
            if is_bare and self._is_within_line(before):
                continue
            self._open, self._held = ("", tag[0] + rest) if is_bare else (OPEN, rest)
            self._is_in_call, self._num_read = True, 0
            return self._worded(before), True
        last = self._held.rfind("<")  # tags have no other
        is_part = last >= 0 and any(tag.startswith(self._held[last:]) for tag in self._tags)
        certain, self._held = (self._held[:last], self._held[last:]) if is_part else (self._held, "")
        return self._worded(certain), False

    def _next_head(self) -> tuple[list[Part], bool]:
        begun = JsonCall.begun(self._held) or TaggedCall.begun(self._held, self._schemas)
        if begun is not None:
            name, self._reader, self._held = begun
            self._has_calls = True
            return [Part("call", name)], True
        if self._held.lstrip().startswith("<") and not may_begin(self._held):
            return self._no_call(self._held.index("<") + 1), True
        end = self._held.find(CLOSE, self._num_read)
        if end < 0:
            self._num_read = max(self._num_read, len(self._held) - len(CLOSE) + 1)
            return [], False
        try:
            call = parse_call(self._held[:end])
        except UnfinishedCallError:
            self._num_read = end + len(CLOSE)
            return [], True
        if call is None:
            return self._no_call(end + len(CLOSE)), True
        self._has_calls = True
        self._leave_call(self._held[end:])
        return _parts(*call), True

    def _next_arguments(self, reader: JsonCall | TaggedCall) -> tuple[list[Part], bool]:
        text, rest = reader.feed(self._held)
        self._held = ""
        if rest is not None:
            self._leave_call(rest)
        return [Part("arguments", text)], rest is not None

    def _leave_call(self, rest: str) -> None:
        self._reader, self._is_in_call, self._held = None, False, rest
        self._blanks, self._is_in_line = "", False

    def _no_call(self, size: int) -> list[Part]:
        text, self._held, self._is_in_call = self._held[:size], self._held[size:], False
        return self._worded(self._open + text)

    def _is_within_line(self, text: str) -> bool:
        """Whether the last line has a word once `text` is added."""
        _, line_end, line = text.rpartition("\n")
        return bool(line.strip()) or (self._is_in_line and not line_end)

    def _worded(self, text: str) -> list[Part]:
        """`text` with the blanks before it, if it has a word."""
        self._is_in_line = self._is_within_line(text)
        if self._blanks is not None:
            text = self._blanks + text
            self._blanks = None if text.strip() else text
        return [] if self._blanks is not None else [Part("content", text)]


def _parts(name: str, arguments: str) -> list[Part]:
    return [Part("call", name), Part("arguments", arguments)]


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
