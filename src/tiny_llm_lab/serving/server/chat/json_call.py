"""Reads a tool call that is a JSON object, as Hermes and Qwen3 write it."""

import json
import re
from collections.abc import Container
from typing import Final, Literal, Self

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
# Bounded, because we try it with every piece of text. Some models double all braces, as a template does.
_NAME: Final = r'\s{0,64}(\{{1,2})\s{0,64}"name"\s{0,64}:\s{0,64}"([^"\\]{1,256})"\s{0,64}'
_HEAD: Final = re.compile(_NAME + r',\s{0,64}"(?:arguments|parameters)"\s{0,64}:\s{0,64}(?=\{)')
_CUT_HEAD: Final = re.compile(_NAME + r'(?:,\s{0,64}(?:"[a-z]{0,10}(?:"\s{0,64}:?\s{0,64})?)?)?')


_FIRST: Final = '{"name":"'
_LONGEST_HEAD: Final = 400
_TAGS: Final = (OPEN, CLOSE)
# A string without its end goes up to where the call ends, if nothing else of an answer follows.
_OUT: Final = re.compile(
    rf"[\s\]}}]{{0,64}}{CLOSE}(?=\s{{0,64}}{OPEN})|[\s\]}}]{{0,64}}[\]}}]\s{{0,64}}{CLOSE}(?=\n)"
)
_MAYBE_OUT: Final = re.compile(
    rf"[\s\]}}]{{0,64}}(?:{'|'.join(CLOSE[:size] for size in range(1, len(CLOSE)))}"
    rf"|{CLOSE}\s{{0,64}}(?:{'|'.join(OPEN[:size] for size in range(len(OPEN)))}))?\Z"
)
_PLAIN: Final = re.compile(r"""[^"'\\\x00-\x1f\s\]}<]+""")
_ESCAPE: Final = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})""")
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PYTHON: Final = {"True": "true", "False": "false", "None": "null", "NaN": "null", "Infinity": "null"}
_WORD_ENDS: Final = {"key": ':,}"\n', "value": ',]}"\n'}
_CLOSERS: Final = {"{": "}", "[": "]"}


class JsonCall:
    """Reads the arguments while they come, and gives them as JSON, which is whole once it is closed.

    What a model forgets is added, what has no meaning is left out, and a key waits for its value.
    """

    def __init__(self, depth: int) -> None:
        """`depth`: open braces around the arguments."""
        self._outer = depth
        # What ends each object and list that is open, and whether it has a member.
        self._open, self._has_members = ["}"] * depth, [False] * depth
        self._place: Literal["key", "colon", "value", "next"] = "value"
        self._key = self._word = ""  # JSON of a key, and the text of what is not written yet
        self._quote = ""  # which ends the string
        self._is_inside = True  # of the arguments
        self._held = ""

    @classmethod
    def begun(cls, text: str) -> tuple[str, Self, str] | None:
        """The name of the function, a reader, and the text for it; None if there is no name yet."""
        if (head := _HEAD.match(text)) is None:
            return None
        return head[2], cls(len(head[1])), text[head.end() :]

    @staticmethod
    def may_begin(text: str) -> bool:
        """Whether `text` is the beginning of a call without tags, up to its arguments."""
        words = "".join(text.split())
        is_name = len(words) <= len(_FIRST) or '"' not in words[len(_FIRST) :]
        is_head = (_FIRST.startswith(words[: len(_FIRST)]) and is_name) or _CUT_HEAD.fullmatch(text)
        return bool(is_head) and len(text) <= _LONGEST_HEAD

    @staticmethod
    def named(text: str, names: Container[str]) -> str | None:
        """The function among `names` of a call that ends before its arguments."""
        head = _CUT_HEAD.fullmatch(text)
        return head[2] if head and head[2] in names else None

    def feed(self, text: str) -> tuple[str, str | None]:
        """What `text` adds to the arguments, and the text behind the call; None while the call goes on."""
        text, self._held, at, written = self._held + text, "", 0, list[str]()
        while at < len(text):
            if self._is_end(text, at):
                return "".join(written) + self.finish(is_cut=False), text[at:]
            size, more = self._in_string(text, at) if self._quote else self._between(text, at)
            written.append(more)
            if not size:
                self._held = text[at:]
                break
            at += size
        return "".join(written), None

    def finish(self, is_cut: bool) -> str:
        """The rest of the arguments, at the end of the text; they stay open if it `is_cut`."""
        if is_cut or not self._is_inside:
            return ""
        last = '"' if self._quote and self._place != "key" else "" if self._quote else self._word_ended()
        self._is_inside = False
        return last + "".join(reversed(self._open[self._outer :]))

    def _is_end(self, text: str, at: int) -> bool:
        if self._quote:
            return _OUT.match(text, at) is not None
        if text[at] == "<" and not _is_partial(text, at):
            return text.startswith(_TAGS, at) or not self._open
        return not self._open and not text[at].isspace() and text[at] not in "}<"

    def _in_string(self, text: str, at: int) -> tuple[int, str]:
        """How many characters are read, and their JSON; 0 if more must come first."""
        char = text[at]
        if char == self._quote:
            return 1, self._string_ended()
        if (plain := _PLAIN.match(text, at)) is not None:
            return len(plain[0]), self._in_place(plain[0])
        if char != "\\":
            is_held = _MAYBE_OUT.match(text, at) is not None
            return (0, "") if is_held else (1, self._in_place(json.dumps(char, ensure_ascii=False)[1:-1]))
        if (escape := _ESCAPE.match(text, at)) is not None:
            return len(escape[0]), self._in_place(escape[0])
        if re.fullmatch(r"\\(?:u[0-9a-fA-F]{0,3})?", text[at : at + 6]):
            return 0, ""
        return (2, self._in_place("'")) if text[at + 1] == "'" else (1, self._in_place(r"\\"))

    def _between(self, text: str, at: int) -> tuple[int, str]:
        """As `_in_string`, for the text outside of strings."""
        char, written = text[at], ""
        if char == "<" and _is_partial(text, at):
            return 0, ""
        if self._word:
            if char not in _WORD_ENDS[self._place]:
                self._word += char
                return 1, ""
            written = self._word_ended()
        if char in "]}":
            return 1, written + self._closed(char)
        if char == ",":
            self._key, self._place = "", self._member()
        elif char == ":":
            self._place = "value" if self._place == "colon" else self._place
        elif not char.isspace():
            self._place = {"next": self._member(), "colon": "value"}.get(self._place, self._place)
            written += self._begun(char)
        return 1, written

    def _begun(self, char: str) -> str:
        """A key or a value that begins with `char`."""
        if char in "\"'":
            self._quote = char
            return "" if self._place == "key" else self._value('"')
        if char not in _CLOSERS:
            self._word = char
        elif self._place != "key":
            written = self._value(char)
            self._open.append(_CLOSERS[char])
            self._has_members.append(False)
            self._place = self._member()
            return written
        return ""

    def _closed(self, char: str) -> str:
        """What closes when `char` does: all that is open inside as well."""
        written, is_over = "", char not in self._open
        while not is_over:
            closer = self._open.pop()
            self._has_members.pop()
            written += self._told(closer)
            self._is_inside = self._is_inside and len(self._open) > self._outer
            is_over = closer == char
            self._key, self._place = "", "next"
        return written

    def _string_ended(self) -> str:
        self._quote = ""
        if self._place != "key":
            self._place = "next"
            return self._told('"')
        self._key, self._word, self._place = f'"{self._word}"', "", "colon"
        return ""

    def _word_ended(self) -> str:
        """The JSON of a text without quotes."""
        word, self._word = self._word.strip(), ""
        if self._place == "key":
            self._key, self._place = json.dumps(word, ensure_ascii=False), "colon"
        if not word or self._place != "value":
            return ""
        self._place = "next"
        word = _PYTHON.get(word.lstrip("-"), word)
        return self._value(word if _SCALAR.fullmatch(word) else json.dumps(word, ensure_ascii=False))

    def _value(self, text: str) -> str:
        comma = ", " if self._has_members[-1:] == [True] else ""
        self._has_members[-1:] = [True]
        key, self._key = f"{self._key}: " if self._key else "", ""
        return self._told(comma + key + text)

    def _member(self) -> Literal["key", "value"]:
        return "key" if self._open[-1:] == ["}"] else "value"

    def _in_place(self, text: str) -> str:
        """`text` of a string, if it is not a key's."""
        if self._place != "key":
            return self._told(text)
        self._word += text
        return ""

    def _told(self, text: str) -> str:
        return text if self._is_inside else ""


def _is_partial(text: str, at: int) -> bool:
    return any(len(text) - at < len(tag) and text.endswith(tag[: len(text) - at]) for tag in _TAGS)


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
