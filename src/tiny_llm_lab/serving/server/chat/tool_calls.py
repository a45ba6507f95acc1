"""Takes <tool_call>...</tool_call> out of an answer, each call as soon as it ends."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tiny_llm_lab.serving.server.chat.parameter_text import parameter_value, properties_of


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedText:
    """What is new in an answer."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


_FUNCTION: Final = re.compile(r"<function=([^>\s]+)>(.*)", re.DOTALL)
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
# At the beginning, after the end of another, or on a line of its own.
_PARAMETER: Final = re.compile(r"(?:(\A|(?<=</parameter>))\s*|\n[ \t]*)<parameter=([^>\s]+)>\n?")
_PARAMETER_END: Final = "</parameter>"

Schemas = Mapping[str, Mapping[str, Any]]  # a JSON schema of the arguments, by function name


class UnfinishedCallError(ValueError):
    """The text ends within a string or a parameter of the call."""


def parse_call(text: str, schemas: Schemas) -> ToolCall | None:
    """The call between <tool_call> and </tool_call>; None when it is malformed.

    Raises UnfinishedCallError for a text that could go on behind a </tool_call> inside of a string or of a
    parameter.
    """
    text = text.strip()
    return _parse_tags(text, schemas) if text.startswith(FUNCTION) else _parse_json(text)


def _parse_json(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise UnfinishedCallError(error.msg) from None
        return None
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return _call(call["name"], arguments)


def _parse_tags(text: str, schemas: Schemas) -> ToolCall | None:
    """A parameter without its end goes up to the next one, or to the end of the call."""
    if (function := _FUNCTION.fullmatch(text.removesuffix(FUNCTION_END))) is None:
        return None
    name, body = function.groups()
    root = schemas.get(name, {})
    properties = properties_of(root)
    # Without an end before it, this may be a part of the last parameter's text; its name tells us.
    starts = [each for each in _PARAMETER.finditer(body) if each[1] is not None or each[2] in properties]
    if body[: starts[0].start() if starts else None].strip():
        return None
    arguments = {}
    ends = [*(each.start() for each in starts[1:]), len(body)]
    for start, end in zip(starts, ends, strict=False):  # without parameters there is one more end
        value, close, rest = body[start.end() : end].rpartition(_PARAMETER_END)
        if rest.strip() and close:
            return None
        if not close and end == len(body) and not text.endswith(FUNCTION_END):
            raise UnfinishedCallError("a parameter does not end")
        value = (value if close else rest).removesuffix("\n")
        arguments[start[2]] = parameter_value(value, properties.get(start[2]), root)
    return _call(name, arguments)


def _call(name: str, arguments: object) -> ToolCall | None:
    try:
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):  # a number such as 1e999
        return None


OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_END: Final = re.compile(CLOSE)
_BARE_END: Final = re.compile(f"{FUNCTION_END}|{CLOSE}|(?={OPEN})")  # of a call without <tool_call>


class ToolCallParser:
    """Splits one answer into content and calls; a malformed call is content.

    Qwen3-Coder forgets <tool_call>: <function=...> of a function that it may call begins one too, on a line
    of its own. Blanks before, between and after calls belong to none of them.
    """

    def __init__(self, schemas: Schemas, is_open: bool = False) -> None:
        """`schemas` by function name; `is_open`: the answer begins inside a call, as its form asks for."""
        self._schemas = schemas
        names = [name for name in schemas if re.fullmatch(r"[^<>\s]+", name)]
        self._tags = (OPEN, CLOSE, *(f"{FUNCTION}{name}>" for name in names))
        self._tag = re.compile("|".join(map(re.escape, self._tags)))
        self._end = _END
        self._is_in_line = False  # after a word in the line
        self._is_in_call = is_open
        self._open = "" if is_open else OPEN  # the call that the text is in
        self._held = ""
        self._num_read = 0  # in the held text of a call; the call does not end before it
        self._blanks: str | None = ""  # held until a word follows; None between words
        self._has_calls = False

    def feed(self, text: str) -> ParsedText:
        """The parts that are certain after `text`."""
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
        """The rest, at the end of the text."""
        text, self._held = self._held, ""
        if self._is_in_call:
            # A call without its end was cut off, maybe between two parameters.
            is_cut = text.lstrip().startswith(FUNCTION) and not text.rstrip().endswith(FUNCTION_END)
            try:
                call = None if is_cut else parse_call(text, self._schemas)
            except UnfinishedCallError:
                call = None
            if call is not None:
                return ParsedText(tool_calls=(call,))
            text = self._open + text
        content = self._worded(text)
        return ParsedText(content=content if self._has_calls else content + (self._blanks or ""))

    def _next_content(self) -> tuple[str, ToolCall | None, bool]:
        for tag in self._tag.finditer(self._held):
            before, rest = self._held[: tag.start()], self._held[tag.end() :]
            if tag[0] == CLOSE:
                if self._has_calls and self._blanks is not None and not before.strip():
                    self._held, self._blanks = rest, ""  # it closes the call, which its function ended
                    return "", None, True
                continue
            is_bare = tag[0] != OPEN
            if is_bare and self._is_within_line(before):
                continue
            self._open, self._end, self._held = OPEN, _END, rest
            if is_bare:
                self._open, self._end, self._held = "", _BARE_END, tag[0] + rest
            self._is_in_call, self._num_read = True, 0
            return self._worded(before), None, True
        last = self._held.rfind("<")  # tags have no other
        is_part = last >= 0 and any(tag.startswith(self._held[last:]) for tag in self._tags)
        certain, self._held = (self._held[:last], self._held[last:]) if is_part else (self._held, "")
        return self._worded(certain), None, False

    def _next_call(self) -> tuple[str, ToolCall | None, bool]:
        end = self._end.search(self._held, self._num_read)
        if end is None:
            self._num_read = max(self._num_read, len(self._held) - len(CLOSE) + 1)
            return "", None, False
        try:
            call = parse_call(self._held[: end.start()], self._schemas)
        except UnfinishedCallError:
            self._num_read = max(end.end(), end.start() + 1)
            return "", None, True
        text, self._held, self._is_in_call = self._held[: end.end()], self._held[end.end() :], False
        if call is None:
            return self._worded(self._open + text), None, True
        self._has_calls, self._blanks, self._is_in_line = True, "", False
        return "", call, True

    def _is_within_line(self, text: str) -> bool:
        """Whether the last line has a word once `text` is added."""
        _, line_end, line = text.rpartition("\n")
        return bool(line.strip()) or (self._is_in_line and not line_end)

    def _worded(self, text: str) -> str:
        """`text` with the blanks before it, if it has a word."""
        self._is_in_line = self._is_within_line(text)
        if self._blanks is None:
            return text
        self._blanks += text
        if not self._blanks.strip():
            return ""
        text, self._blanks = self._blanks, None
        return text
