"""Reads a tool call in the tags of Qwen3-Coder, <function=...> with a <parameter=...> for each argument."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Self

from tiny_llm_lab.serving.server.chat.parameter_text import ParameterText, properties_of

FUNCTION: Final = "<function="
_NAME: Final = r"[^<>\s]{1,256}"
_PARAMETER: Final = rf"<parameter=({_NAME})>"
# Behind a parameter or the name of the function: all else is part of a value, or no call.
_NEXT: Final = re.compile(
    rf"\s{{0,64}}(?:{_PARAMETER}(?:\n|(?=[^\n]))|(</function>)|(?=</?tool_call>))", re.DOTALL
)
_HEAD: Final = re.compile(
    rf"\s{{0,64}}{FUNCTION}({_NAME})>(?=\s{{0,64}}(?:{_PARAMETER}|</function>|</tool_call>))"
)
_UNFINISHED: Final = r"(?:<[^<>\s]{0,270})?"  # a tag
_MAYBE_HEAD: Final = re.compile(rf"\s{{0,64}}(?:{FUNCTION}{_NAME}>\s{{0,64}})?{_UNFINISHED}")
# What may be the beginning of a value's end.
_TAIL: Final = re.compile(
    rf"(?:\n[ \t]{{0,64}}|\n?(?:</parameter>|</function>|</tool_call>)\s{{0,64}})?{_UNFINISHED}\Z"
)
_LAST: Final = re.compile(rf"\n?(?:(</parameter>)|</function>|</tool_call>)\s*(?(1){_UNFINISHED})")


def may_begin(text: str) -> bool:
    """Whether `text` may become a call whose name is not known yet."""
    return _MAYBE_HEAD.fullmatch(text) is not None


class TaggedCall:
    """Reads the arguments while they come, and gives them as JSON; text need not be whole for that.

    A parameter without its end goes up to the next one whose name is known, or to the end of the call.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """`schema`: the JSON schema of the arguments."""
        self._root, self._properties = schema, properties_of(schema)
        known = "|".join(map(re.escape, self._properties)) or "(?!)"
        self._end = re.compile(
            rf"\n?</parameter>(?=\s{{0,64}}(?:{_PARAMETER}|</function>|</?tool_call>))"
            rf"|(?=\n[ \t]{{0,64}}<parameter=(?:{known})>)|\n?(?=</function>\s{{0,64}}</tool_call>)"
        )
        self._value: ParameterText | None = None
        self._held = ""
        self._before = "{"  # written before the next name

    @classmethod
    def begun(cls, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, Self, str] | None:
        """The name of the function, a reader, and the text for it; None if it is none yet, or no call."""
        if (head := _HEAD.match(text)) is None:
            return None
        return head[1], cls(schemas.get(head[1], {})), text[head.end() :]

    def feed(self, text: str) -> tuple[str, str | None]:
        """What `text` adds to the arguments, and the text behind the call; None while the call goes on."""
        self._held += text
        written = ""
        while True:
            if self._value is not None:
                more, is_over = self._in_value(self._value)
                written += more
                if not is_over:
                    return written, None
                self._value = None
            if (tag := _NEXT.match(self._held)) is None:
                return written, None
            self._held = self._held[tag.end() :]
            if tag[1] is None:
                return written + self._closed(), self._held
            written += f"{self._before}{json.dumps(tag[1], ensure_ascii=False)}: "
            self._before, self._value = ", ", ParameterText(self._properties.get(tag[1]), self._root)

    def finish(self) -> str:
        """The rest of the arguments, at the end of the text; a call without any end was cut off."""
        if self._value is None or (last := _LAST.fullmatch(self._held)) is None:
            return ""
        return self._value.finish() + ("" if last[1] else self._closed())

    def _in_value(self, value: ParameterText) -> tuple[str, bool]:
        if (end := self._end.search(self._held)) is not None:
            text, self._held = self._held[: end.start()], self._held[end.end() :]
            return value.feed(text) + value.finish(), True
        tail = _TAIL.search(self._held)
        at = len(self._held) if tail is None else tail.start()
        text, self._held = self._held[:at], self._held[at:]
        return value.feed(text), False

    def _closed(self) -> str:
        return "{}" if self._before == "{" else "}"
