"""<tool_call>...</tool_call> in an answer, taken out as soon as each call ends."""

from typing import Final

from .call_text import Schemas, UnfinishedCallError, parse_call
from .parsed import ParsedText, ToolCall, num_held

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


class ToolCallParser:
    """Splits one answer into content and calls; a malformed call is content.

    Blanks before, between and after calls belong to none of them.
    """

    def __init__(self, schemas: Schemas, is_open: bool = False) -> None:
        """`schemas` by function name; `is_open`: the answer begins inside a call, as its form asks for."""
        self._schemas = schemas
        self._is_in_call = is_open
        self._open = "" if is_open else OPEN  # of the call that the text is in
        self._held = ""
        self._num_read = 0  # of what is held in a call: there is no end of a call before
        self._blanks: str | None = ""  # held until a word follows; None between words
        self._has_calls = False

    def feed(self, text: str) -> ParsedText:
        """What `text` makes certain."""
        self._held += text
        content, calls = "", []
        while True:
            more, call, is_progress = self._next_call() if self._is_in_call else self._next_content()
            content += more
            if call is not None:
                calls.append(call)
            if not is_progress:
                return ParsedText(content=content, tool_calls=tuple(calls))

    def finish(self) -> ParsedText:
        """The rest, when no text follows."""
        text, self._held = self._held, ""
        if self._is_in_call:
            try:
                call = parse_call(text, self._schemas)
            except UnfinishedCallError:
                call = None
            if call is not None:
                return ParsedText(tool_calls=(call,))
            text = self._open + text
        content = self._worded(text)
        return ParsedText(content=content if self._has_calls else content + (self._blanks or ""))

    def _next_content(self) -> tuple[str, ToolCall | None, bool]:
        before, tag, rest = self._held.partition(OPEN)
        if tag:
            self._held, self._is_in_call, self._open, self._num_read = rest, True, OPEN, 0
            return self._worded(before), None, True
        num_certain = len(before) - num_held(before, OPEN)
        self._held = before[num_certain:]
        return self._worded(before[:num_certain]), None, False

    def _next_call(self) -> tuple[str, ToolCall | None, bool]:
        end = self._held.find(CLOSE, self._num_read)
        if end < 0:
            self._num_read = max(self._num_read, len(self._held) - len(CLOSE) + 1)
            return "", None, False
        behind = end + len(CLOSE)
        try:
            call = parse_call(self._held[:end], self._schemas)
        except UnfinishedCallError:
            self._num_read = behind
            return "", None, True
        text, self._held, self._is_in_call = self._held[:behind], self._held[behind:], False
        if call is None:
            return self._worded(self._open + text), None, True
        self._has_calls, self._blanks = True, ""
        return "", call, True

    def _worded(self, text: str) -> str:
        """`text` with the blanks before it, when it has a word."""
        if self._blanks is None:
            return text
        self._blanks += text
        if not self._blanks.strip():
            return ""
        text, self._blanks = self._blanks, None
        return text
