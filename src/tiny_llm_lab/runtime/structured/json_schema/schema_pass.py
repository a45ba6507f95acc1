"""One pass over a JSON schema before llguidance reads it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.runtime.structured.json_schema import numbers
from tiny_llm_lab.runtime.structured.json_schema.identity import Identity
from tiny_llm_lab.runtime.structured.json_schema.keywords import (
    FORMATS,
    KEYWORDS,
    NAMED_SCHEMAS,
    SCHEMA,
    SCHEMAS,
    SILENT,
    TYPES,
)
from tiny_llm_lab.types import UserError

Json = object
_Node = dict[str, Json]
_LOOKS: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!])|\\[bB1-9k])")
_APPLICATORS: Final = frozenset("$ref allOf anyOf oneOf if dependentSchemas not".split())
_WITHOUT: Final = "leave it out, and check the answer yourself"


@dataclass(frozen=True)
class PlainSchema:
    """A schema that llguidance can read, and what asserted nothing in the original."""

    schema: Mapping[str, Json]
    left_out: tuple[str, ...]


def _refused(place: str, reason: str) -> UserError:
    """A part of a schema can't be kept."""
    return UserError(f"the JSON schema at {place or '/'}: {reason}")


def plain_schema(schema: Mapping[str, Json] | bool) -> PlainSchema:
    """`schema` as keywords.py says, with every $ref in $defs of its own.

    Answers of its form have the form of `schema`, too. Raises UserError for what can't be kept.
    """
    try:
        return _Pass({} if schema is True else {"not": {}} if schema is False else schema).run()
    except RecursionError:
        raise UserError("the JSON schema is nested too deeply: simplify it") from None


class _Pass:
    def __init__(self, root: Mapping[str, Json]) -> None:
        self._root, self._identity = root, Identity(root)
        self._names: dict[int, str] = {}  # of targets of $ref
        self._open: list[tuple[str, Json]] = []  # targets that are not in the result yet
        self._left_out: dict[str, None] = {}

    def run(self) -> PlainSchema:
        made = self._schema(self._root, "")
        found: dict[str, Json] = {}
        while self._open:
            name, target = self._open.pop()
            found[name] = self._schema(target, f"/$defs/{name}")
        if isinstance(made, dict) and found:
            made = {**made, "$defs": found}
        if not isinstance(made, dict):
            raise _refused("", "no value fits it: remove the not")
        return PlainSchema(made, tuple(self._left_out))

    def _schema(self, schema: Json, place: str) -> Json:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise _refused(place, f"a schema is an object, true or false, not {_short(schema)}")
        node = {key: value for key, value in schema.items() if value is not None or key == "const"}
        if _is_never(node, place):
            return False
        for rewrite in _REWRITES:
            rewrite(node, place)
        made: _Node = {}
        for key, value in node.items():
            treatment = KEYWORDS.get(key, "annotation")
            if treatment == "refused":
                raise _refused(f"{place}/{key}", f"this keyword is not supported: {_WITHOUT}")
            if treatment == "annotation":
                self._note(key)
            elif key == "$ref":
                made[key] = self._reference(schema, value, f"{place}/$ref")
            elif key == "format" and value not in FORMATS:
                self._note(f"format {_short(value)}")
            elif key not in ("$id", "id", "$anchor", "$defs", "definitions"):
                made[key] = self._inner(key, value, f"{place}/{key}")
        return made

    def _inner(self, key: str, value: Json, place: str) -> Json:
        """The value of a keyword, whose schemas are passed as well."""
        if key in NAMED_SCHEMAS:
            if not isinstance(value, Mapping):
                raise _refused(place, "must be an object of schemas")
            return {name: self._schema(each, f"{place}/{_escaped(name)}") for name, each in value.items()}
        if key in SCHEMAS and isinstance(value, list):
            return [self._schema(each, f"{place}/{number}") for number, each in enumerate(value)]
        return self._schema(value, place) if key in SCHEMA else value

    def _reference(self, schema: Mapping[str, Json], reference: Json, place: str) -> str:
        try:
            target = self._identity.target(schema, str(reference))
        except (LookupError, ValueError):
            reason = f"nothing in this schema is called {_short(reference)}: put it into $defs"
            raise _refused(place, reason) from None
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"s{len(self._names)}"
            self._open.append((name, target))
        return f"#/$defs/{name}"

    def _note(self, name: str) -> None:
        if name not in SILENT:
            self._left_out[name] = None


def _is_never(node: _Node, place: str) -> bool:
    """Whether `not` lets nothing pass; one that lets everything pass is dropped."""
    refused = node.get("not")
    if refused in (False, None):
        node.pop("not", None)
    elif not (refused is True or (isinstance(refused, Mapping) and not set(refused) - SILENT)):
        raise _refused(f"{place}/not", f"this keyword is not supported: {_WITHOUT}")
    return "not" in node


def _types(node: _Node, place: str) -> None:
    given = node.get("type", [])
    for each in given if isinstance(given, list) else [given]:
        if each not in TYPES:
            raise _refused(
                f"{place}/type", f"{_short(each)} is no type of JSON: write {', '.join(sorted(TYPES))}"
            )


def _values(node: _Node, place: str) -> None:
    for key in ("const", "enum"):
        for number in numbers.numbers_in(node.get(key)):
            if not numbers.is_exact(number):
                reason = f"{_short(number)} can't be written with all its digits: write it as text"
                raise _refused(f"{place}/{key}", reason)


def _bounds(node: _Node, place: str) -> None:
    for key, exclusive, rounded in (
        ("minimum", "exclusiveMinimum", numbers.lower),
        ("maximum", "exclusiveMaximum", numbers.upper),
    ):
        if isinstance(node.get(exclusive), bool):  # draft 4
            is_exclusive = node.pop(exclusive)
            if is_exclusive and key in node:
                node[exclusive] = node.pop(key)
        for name in (key, exclusive):
            if name in node:
                node[name] = _bound(node[name], rounded, f"{place}/{name}")
    if "multipleOf" in node and not numbers.is_step(node["multipleOf"]):
        reason = f"must be a number above 0 with at most {numbers.MOST_DIGITS} digits"
        raise _refused(f"{place}/multipleOf", reason)


def _counts(node: _Node, place: str) -> None:
    for key in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        value = node.get(key)
        if isinstance(value, float) and value.is_integer():
            value = node[key] = int(value)
        if value is not None and not (type(value) is int and 0 <= value <= numbers.MOST_COUNT):
            reason = f"must be 0 to {numbers.MOST_COUNT}, not {_short(value)}"
            raise _refused(f"{place}/{key}", reason)


def _bound(value: Json, rounded: Callable[[int | float], int | float | None], place: str) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refused(place, f"must be a number, not {_short(value)}")
    found = rounded(value)
    if found is None:
        raise _refused(place, "numbers beyond 10^18 can't be written: ask for them as text")
    return found


def _pattern(node: _Node, place: str) -> None:
    patterns = [("/pattern", node.get("pattern"))]
    if isinstance(named := node.get("patternProperties"), Mapping):
        patterns += [(f"/patternProperties/{_escaped(each)}", each) for each in named]
    for where, pattern in patterns:
        if isinstance(pattern, str) and (found := _LOOKS.search(pattern)):
            reason = (
                f"{found[0]!r} looks around or back, which is not supported: write the pattern without it"
            )
            raise _refused(place + where, reason)


def _array(node: _Node, place: str) -> None:
    if isinstance(first := node.get("items"), list):  # up to draft 2019-09
        node["prefixItems"] = first
        node["items"] = node.pop("additionalItems", True)
    node.pop("additionalItems", None)
    if not node.get("uniqueItems") or node.get("maxItems") in (0, 1):
        node.pop("uniqueItems", None)
    if "contains" not in node or node.get("minContains") == 0:
        node.pop("minContains", None)
        if "maxContains" not in node or "contains" not in node:
            node.pop("contains", None)
            node.pop("maxContains", None)
    if node.get("unevaluatedItems") in (True, {}) or "items" in node:
        node.pop("unevaluatedItems", None)
    elif "unevaluatedItems" in node and not _APPLICATORS & set(node):
        node["items"] = node.pop("unevaluatedItems")
    _refuse(node, place, "uniqueItems", "contains", "unevaluatedItems")


def _object(node: _Node, place: str) -> None:
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if node.get(key) == {}:
            del node[key]
    if node.get("unevaluatedProperties") in (True, {}) or "additionalProperties" in node:
        node.pop("unevaluatedProperties", None)
    elif "unevaluatedProperties" in node and not _APPLICATORS & set(node):
        node["additionalProperties"] = node.pop("unevaluatedProperties")
    _names(node)
    if not node.get("minProperties"):
        node.pop("minProperties", None)
    named, required = node.get("properties"), node.get("required", [])
    is_open = isinstance(named, Mapping) and not set(named) <= set(
        required if isinstance(required, list) else []
    )
    for key in ("minProperties", "maxProperties") if is_open else ():
        if key in node:
            reason = "it needs all properties in required: leave it out, or require them"
            raise _refused(f"{place}/{key}", reason)
    if "if" in node and not {"then", "else"} & set(node):
        del node["if"]
    _refuse(
        node,
        place,
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "propertyNames"),
        "if",
    )


def _names(node: _Node) -> None:
    """Names of properties that a pattern or a list gives, written as what llguidance has."""
    names = node.get("propertyNames")
    if names is True or (
        isinstance(names, Mapping)
        and not set(names) - SILENT - {"type"}
        and names.get("type") in (None, "string")
    ):
        del node["propertyNames"]
    elif isinstance(names, Mapping) and not {"properties", "patternProperties"} & set(node):
        others, keys = node.get("additionalProperties", True), set(names) - SILENT - {"type"}
        if keys == {"pattern"}:
            node["patternProperties"] = {names["pattern"]: others}
        elif keys == {"enum"} and isinstance(names["enum"], list):
            node["properties"] = {str(each): others for each in names["enum"]}
        else:
            return
        del node["propertyNames"]
        node["additionalProperties"] = False


def _refuse(node: _Node, place: str, *keys: str) -> None:
    for key in keys:
        if key in node:
            raise _refused(f"{place}/{key}", f"this keyword is not supported: {_WITHOUT}")


_REWRITES: Final = (_types, _values, _counts, _bounds, _pattern, _array, _object)


def places_of(schema: Json, keyword: str, part: str = "", place: str = "") -> list[str]:
    """The JSON pointers of `keyword`, where its value contains the text `part`."""
    if isinstance(schema, list):
        parts = [(str(number), each) for number, each in enumerate(schema)]
    else:
        parts = list(schema.items()) if isinstance(schema, Mapping) else []
    found = []
    for name, value in parts:
        inner = f"{place}/{_escaped(name)}"
        if name == keyword and part in str(value):
            found.append(inner)
        found += places_of(value, keyword, part, inner)
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"
