"""Reads a parameter's text in a tool call as the kind of value that its schema asks for."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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
