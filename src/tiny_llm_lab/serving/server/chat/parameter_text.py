"""Reads a parameter's text in a tool call as the kind of value that its schema asks for."""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_MOST_REFERENCES: Final = 32  # followed for one parameter, because references may form a cycle
_KINDS = {str: "string", int: "number", float: "number", bool: "boolean", list: "array", dict: "object"}


def properties_of(schema: object) -> Mapping[str, Any]:
    """The schemas of a function's parameters by name; anything that is not a JSON schema has none."""
    if isinstance(schema, Mapping) and "$ref" in schema and "properties" not in schema:
        schema = _target(schema["$ref"], schema)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def parameter_value(text: str, schema: object, root: object) -> object:
    """`text` as `schema` has it, whose references point into `root`; never raises.

    What may be a string stays one, except for null where that is allowed too: a model that means no value
    writes null or None. Any other kind is read as JSON, or as Python writes it, and what reads as neither
    stays text. Where the schema does not say a kind, text that is JSON is read as such.
    """
    try:
        kinds = _kinds(schema, text, root, [])
    except RecursionError:
        return text
    if kinds is None:
        return _read(text, json.loads)
    if "null" in kinds and text.strip() in ("null", "None"):
        return None
    return text if not kinds or "string" in kinds else _read(text, json.loads, ast.literal_eval)


def _kinds(schema: object, text: str, root: object, seen: list[str]) -> set[str] | None:
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
