"""Reads a tool call that is a JSON object, as Hermes and Qwen3 write it."""

import json
import re
from typing import Final, Self

CLOSE: Final = "</tool_call>"
# Bounded, because we try it with every piece of text. Some models double all braces, as a template does.
_HEAD: Final = re.compile(
    r'\s{0,64}(\{{1,2})\s{0,64}"name"\s{0,64}:\s{0,64}"([^"\\]{1,256})"\s{0,64},'
    r'\s{0,64}"(?:arguments|parameters)"\s{0,64}:\s{0,64}(?=\{)'
)


class JsonCall:
    """Reads the arguments while they come, as the model writes them; line breaks in strings are escaped."""

    def __init__(self, depth: int) -> None:
        """`depth`: open braces around the arguments."""
        self._depth = self._outer = depth
        self._is_inside = True  # of the arguments
        self._is_string = self._is_escaped = False
        self._held = ""

    @classmethod
    def begun(cls, text: str) -> tuple[str, Self, str] | None:
        """The name of the function, a reader, and the text for it; None if there is no name yet."""
        if (head := _HEAD.match(text)) is None:
            return None
        return head[2], cls(len(head[1])), text[head.end() :]

    def feed(self, text: str) -> tuple[str, str | None]:
        """What `text` adds to the arguments, and the text behind the call; None while the call goes on."""
        text, self._held, written = self._held + text, "", []
        for at, char in enumerate(text):
            if self._is_string:
                written.append(self._in_string(char))
                continue
            if char == "<" and CLOSE.startswith(text[at : at + len(CLOSE)]):
                if text.startswith(CLOSE, at):
                    return "".join(written), text[at:]
                self._held = text[at:]
                break
            if self._depth <= 0 and not char.isspace() and char != "}":
                return "".join(written), text[at:]
            written.append(self._between(char))
        return "".join(written), None

    def finish(self) -> str:
        """The rest of the arguments, at the end of the text."""
        return ""

    def _in_string(self, char: str) -> str:
        self._is_string = self._is_escaped or char != '"'
        self._is_escaped = char == "\\" and not self._is_escaped
        return self._told(json.dumps(char)[1:-1] if char < " " else char)

    def _between(self, char: str) -> str:
        told = self._told(char)
        self._is_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        self._is_inside = self._is_inside and (self._depth > self._outer or char not in "}]")
        return told

    def _told(self, text: str) -> str:
        return text if self._is_inside else ""


class UnfinishedCallError(ValueError):
    """The text ends within a string of the call."""


def parse_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a whole call in any order and form; None when it is malformed.

    Raises UnfinishedCallError for a text that could go on behind a </tool_call> inside of a string.
    """
    text = text.strip()
    call = _read(text[1:-1] if text.startswith("{{") and text.endswith("}}") else text)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        arguments = _read(arguments or "{}")
    if arguments is None:
        arguments = {}
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # a number such as 1e999
        return None
    return (call["name"], text) if isinstance(arguments, dict) else None


def _read(text: str) -> object:
    """JSON whose strings may have line breaks; a text that is none is itself."""
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise UnfinishedCallError(error.msg) from None
    except (ValueError, RecursionError):
        pass
    return text
