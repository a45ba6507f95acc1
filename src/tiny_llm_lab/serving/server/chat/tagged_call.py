"""Reads a tool call in the tags of Qwen3-Coder, <function=...> with a <parameter=...> for each argument."""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

_MOST_REFERENCES: Final = 32  # followed for one parameter, because references may form a cycle
_NULLS: Final = ("null", "None")
_LONGEST_NULL: Final = 64  # with blanks around it
_NO_TEXT: Final = object()  # equal to no string of an enum: what a text is whatever it says
_KINDS = {str: "string", int: "number", float: "number", bool: "boolean", list: "array", dict: "object"}


def properties_of(schema: object) -> Mapping[str, Any]:
    """The schemas of a function's parameters by name; anything that is not a JSON schema has none."""
    if isinstance(schema, Mapping) and "$ref" in schema and "properties" not in schema:
        schema = _target(schema["$ref"], schema)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


class ParameterText:
    """Reads one parameter, and gives it as JSON: text as it comes, any other kind when it ends.

    What may be a string stays one, except for null where that is allowed too: a model that means no value
    writes null or None. Any other kind is read as JSON, or as Python writes it, and what reads as neither
    stays text. Where the schema does not say a kind, text that is JSON is read as such.
    """

    def __init__(self, schema: object, root: object) -> None:
        """`schema` of the parameter, whose references point into `root`."""
        self._schema, self._root = schema, root
        kinds = _kinds_of(schema, _NO_TEXT, root)
        self._is_text = kinds is not None and (not kinds or "string" in kinds)
        self._is_nullable = kinds is not None and "null" in kinds
        self._held = ""
        self._is_begun = False  # some of a text was given

    def feed(self, text: str) -> str:
        """The JSON that is certain after `text`."""
        self._held += text
        return self._told() if self._is_text and not self._may_be_null() else ""

    def finish(self) -> str:
        """The rest, at the end of the parameter."""
        is_null = self._may_be_null() and self._held.strip() in _NULLS
        if self._is_text and not is_null:
            return self._told() + '"'
        return json.dumps(_value(self._held, self._schema, self._root), ensure_ascii=False)

    def _may_be_null(self) -> bool:
        if self._is_begun or not self._is_nullable or len(self._held) >= _LONGEST_NULL:
            return False
        return any(null.startswith(self._held.strip()) for null in _NULLS)

    def _told(self) -> str:
        text, self._held = json.dumps(self._held, ensure_ascii=False)[1:-1], ""
        text, self._is_begun = text if self._is_begun else f'"{text}', True
        return text


def _value(text: str, schema: object, root: object) -> object:
    """`text` as `schema` has it; never raises."""
    kinds = _kinds_of(schema, text, root)
    if kinds is None:
        return _read(text, json.loads)
    if "null" in kinds and text.strip() in _NULLS:
        return None
    return text if not kinds or "string" in kinds else _read(text, json.loads, ast.literal_eval)


def _kinds_of(schema: object, text: object, root: object) -> set[str] | None:
    try:
        return _kinds(schema, text, root, [])
    except RecursionError:
        return set()


def _kinds(schema: object, text: object, root: object, seen: list[str]) -> set[str] | None:
    """Which JSON types `text` may be; integers are numbers. None: any."""
    if not isinstance(schema, Mapping):
        return None
    told: list[set[str] | None] = [_kinds(each, text, root, seen) for each in _items(schema, "allOf")]
    if isinstance(reference := schema.get("$ref"), str):
        if reference in seen or len(seen) == _MOST_REFERENCES:
            return set()  # already counted where we saw it first
        seen.append(reference)
        told.append(_kinds(_target(reference, root), text, root, seen))
    for name in ("anyOf", "oneOf"):
        if branches := [_kinds(each, text, root, seen) for each in _items(schema, name)]:
            told.append(None if None in branches else {kind for each in branches for kind in each or ()})
    given = schema.get("type")
    if names := {each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)}:
        told.append({"number" if each == "integer" else each for each in names})
    values = [schema["const"]] if "const" in schema else _items(schema, "enum")
    if values:
        # Of an enum's strings only `text` itself counts: "auto" in an enum does not make a string of 5.
        told.append(
            {_KINDS.get(type(each), "null") for each in values if each == text or type(each) is not str}
        )
    known = [each for each in told if each is not None]
    return set.intersection(*known) if known else None


def _items(schema: Mapping[Any, Any], name: str) -> Sequence[object]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _target(reference: object, root: object) -> object:
    """The target of a reference such as #/$defs/name; None without one."""
    for part in str(reference).removeprefix("#").split("/")[1:]:
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _read(text: str, *readers: Callable[[str], object]) -> object:
    for read in readers:
        try:
            return json.loads(json.dumps(read(text.strip()), allow_nan=False))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


FUNCTION: Final = "<function="
_B: Final = r"\s{0,64}"  # bounded, because we try it with every piece of text
# Of <parameter=a>, <parameter="a"> and <parameter name="a">.
_IS: Final = r"""(?: ?= ?| name ?= ?)(["']?)"""


def _near(name: str) -> str:
    """A pattern for `name` in a tag, and for what is left of both after a mistake in one place."""
    ways = (rf"{name[:at]}[^\s<>]{{0,3}}{name[at + 2 :]}" for at in range(len(name) - 1))
    return rf"(?:(?:<{{1,2}}/{{0,2}}|[^\s<>]?/)(?:{name}|{'|'.join(ways)}))"


_PARAMETER: Final = _near("parameter")
_PARAMETER_END: Final = f"(?:</parameter>|{_PARAMETER}>{{0,2}})"
_FUNCTION_END: Final = rf"(?:</function>|{_near('function')}(?:>|(?![=>]|\Z)))"
_CALL: Final = f"(?:</?tool_call>|{_near('tool_call')}>?)"
# What may follow a parameter.
_NEXT: Final = f"(?:{_PARAMETER}|{_FUNCTION_END}|{_CALL}|<function)"
_HEAD: Final = re.compile(rf"{_B}<function{_IS}([^<>\s\"']{{1,256}})\1[ \n]?>(?={_B}{_NEXT})")
_MAYBE_HEAD: Final = re.compile(
    rf"{_B}(?:<function{_IS}[^<>\s\"']{{1,256}}\1[ \n]?>{_B})?(?:<{{1,2}}[^<>\n]{{0,300}}\n?)?"
)
_BEGIN: Final = re.compile(rf"(<parameter)?(?(1)|(?=<){_PARAMETER}){_IS}([^<>\n]{{1,256}}?)\2 ?>")
_END: Final = re.compile(rf"{_FUNCTION_END}|(?={_CALL}|<function)")
# The last word, or a tag with a name, of which more may come.
_WORD: Final = re.compile(r"<{0,2}[^\s<>]{0,14}\Z")
_OPENING: Final = re.compile(rf"(?=<){_PARAMETER}[^<>\n]{{0,300}}")
_ANY_PARAMETER: Final = re.compile(r"</?parameter\b")
_LONGEST_OPENING: Final = 320
_WHOLE_WORD: Final = re.compile(r"\S{14}|.[^\s<>]*[\s<>]")
_OTHER: Final = re.compile(r".[^\s</]*")  # before what may be a tag
# Tags that end a value if the right one follows, and are no part of it if another does.
_ENDS: Final = rf"(?:{_B}(?:{_PARAMETER_END}|{_FUNCTION_END}|{_CALL}|<function[^<>\n]{{0,300}}>)){{0,12}}{_B}"
_HELD: Final = re.compile(rf"{_ENDS}\Z")
_LONGEST_HELD: Final = 1500
_STOPPED: Final = "\n</tool_call>\n<tool_call>\n<function=>\n"  # ends any call
_TAGS: Final = ("</parameter>", "</function>", "</tool_call>", "<parameter=", "<tool_call>")
_STARTS: Final = "|".join(tag[:size] for tag in _TAGS for size in range(len(tag) - 1, 1, -1))
_BROKEN: Final = re.compile(rf"\n?(?:<parameter[^<>\n]*|{_STARTS}|(?<=\n)<)\Z")


def stopped(text: str) -> str:
    """`text` with the end of a call in place of a tag that is not whole."""
    return _BROKEN.sub("", text) + _STOPPED


def may_begin(text: str) -> bool:
    """Whether `text` may become a call whose name is not known yet."""
    return _MAYBE_HEAD.fullmatch(text) is not None


class TaggedCall:
    """Reads the arguments while they come, and gives them as JSON; text need not be whole for that.

    A parameter without its end goes up to the next one whose name is known, or to the end of the call. Tags
    with a mistake end it as well, where the next tag says so, and are no part of any value.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """`schema`: the JSON schema of the arguments."""
        self._root, self._properties = schema, properties_of(schema)
        known = "|".join(map(re.escape, self._properties)) or "(?!)"
        line = r"\n[ \t]{0,64}"
        self._end = re.compile(
            rf"(?P<right>\n?</parameter>)(?={_B}(?:<parameter{_IS}|</function>))"
            rf"|(?:\n?</parameter>|{line}{_PARAMETER_END})(?={_B}{_NEXT})"
            rf"|(?={line}<parameter{_IS}(?:{known})\3\s?>)"
            rf"|(?:\n?(?=</function>)|(?={line}{_FUNCTION_END}))(?={_B}{_FUNCTION_END}{_B}(?:{_CALL}|<function))"
            rf"|\n?(?=(?:(?:{_CALL}{_B}){{2,4}}|</tool_call>{_B})<function)"
            rf"|(?P<line>{line}</parameter>)(?=\s{{0,64}}\S)"
            rf"|(?={line}</function>\s{{0,64}}\S)(?!{line}</function>{_B}{_PARAMETER_END})"
        )
        self._depth = 0  # parameters that are open within the value
        self._value: ParameterText | None = None
        self._name = ""  # of the value
        self._names: set[str] = set()
        self._is_first = True  # no text of the value was read yet
        self._is_repeated = False  # the value's name was given before
        self._held = ""

    @classmethod
    def begun(cls, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, Self, str] | None:
        """The name of the function, a reader, and the text for it; None if it is none yet, or no call."""
        if (head := _HEAD.match(text)) is None:
            return None
        return head[2], cls(schemas.get(head[2], {})), text[head.end() :]

    def feed(self, text: str) -> tuple[str, str | None]:
        """What `text` adds to the arguments, and the text behind the call; None while the call goes on."""
        self._held += text
        written = ""
        while True:
            end = _num_read(self._held)
            if self._value is not None:
                more, is_over = self._in_value(self._value, end)
                written += more
                if not is_over:
                    return written, None
                continue
            self._held = self._held.lstrip()
            end = _num_read(self._held)
            if _WHOLE_WORD.match(self._held, 0, end) is None:
                return written, None
            if (tag := _BEGIN.match(self._held, 0, end)) and (tag[1] or tag[3] in self._properties):
                self._begin(tag[3])
            elif (tag := _END.match(self._held, 0, end)) is not None:
                return written + ("}" if self._names else "{}"), self._held[tag.end() :]
            skipped = tag or _OTHER.match(self._held, 0, end)
            self._held = self._held[skipped.end() if skipped else 1 :]

    def finish(self, is_cut: bool) -> str:
        """The rest of the arguments, at the end of the text; they stay open if it `is_cut`."""
        if is_cut:
            return ""
        self._held = _BROKEN.sub("", self._held)
        if self._is_first and not self._held.strip():
            self._value = None  # nothing of it was written
        return self.feed(_STOPPED)[0]

    def _begin(self, name: str) -> None:
        self._value, self._name = ParameterText(self._properties.get(name), self._root), name
        self._is_first, self._is_repeated, self._depth = True, name in self._names, 0

    def _in_value(self, value: ParameterText, end: int) -> tuple[str, bool]:
        """What is read of the value goes; whether the value is over."""
        if self._is_first:
            start = len(self._held) - len(self._held.lstrip())
            tag = _BEGIN.match(self._held, start, end)
            if tag is not None and tag[3] == self._name:
                self._held = self._held[tag.end() :]
                return "", True
        has_tags = "<" in self._held or ">" in self._held
        if has_tags and (result := self._found_end(end)) is not None:
            at = result.start()
            if not result["right"]:
                at = self._num_held(at)
            more = self._read(value, at, result.end())
            more, self._value = self._told(more + value.finish()), None
            return more, True
        at = self._num_held(end) if has_tags else max(len(self._held[:end].rstrip()), end - 64)
        return self._told(self._read(value, at, at)) if at else "", False

    def _read(self, value: ParameterText, at: int, end: int) -> str:
        text, self._held = self._held[:at], self._held[end:]
        if self._is_first:
            text = text.removeprefix("\n")
        self._is_first, self._depth = False, _depth(text, self._depth)
        return value.feed(text)

    def _num_held(self, end: int) -> int:
        """Where the tags and blanks begin that come before `end`."""
        held = _HELD.search(self._held, max(0, end - _LONGEST_HELD), end)
        return end if held is None else held.start()

    def _found_end(self, end: int) -> re.Match[str] | None:
        """Where the value ends; a line of </parameter> ends one that was opened inside first."""
        start = 0
        while (result := self._end.search(self._held, start, end)) is not None:
            if not result["line"] or not _depth(self._held[: result.start()], self._depth):
                return result
            start = result.end() - 1
        return None

    def _told(self, written: str) -> str:
        """`written` of the value, behind its name."""
        if self._is_repeated or not written:
            return ""
        if self._name not in self._names:
            self._names.add(self._name)
            before = "{" if len(self._names) == 1 else ", "
            written = f"{before}{json.dumps(self._name, ensure_ascii=False)}: {written}"
        return written


def _depth(text: str, depth: int) -> int:
    """How many parameters are open behind `text`, before which there were `depth`."""
    for tag in _ANY_PARAMETER.finditer(text):
        depth = max(0, depth - 1) if tag[0].startswith("</") else depth + 1
    return depth


def _num_read(text: str) -> int:
    """How much of `text` is read whatever follows."""
    last = text.rfind("<", max(0, len(text) - _LONGEST_OPENING))
    if last >= 0 and _OPENING.fullmatch(text, last) is not None:
        return last - (text[last - 1 : last] == "<")
    word = _WORD.search(text, max(0, len(text) - 16))
    return len(text) if word is None else word.start()
