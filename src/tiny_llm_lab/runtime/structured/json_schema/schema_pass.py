"""One pass over a JSON schema before llguidance reads it."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

from tiny_llm_lab.runtime.structured.json_schema import keywords
from tiny_llm_lab.runtime.structured.json_schema.keywords import SILENT, TRIVIAL, TYPES
from tiny_llm_lab.types import UserError

EXACT: Final = 2**53  # up to here a double has every integer
# Above these llguidance makes no expression for a range with one end, or overflows.
LARGEST: Final = 10**18 - 2**10
_LARGEST_INTEGER: Final = 2**63 - 2**10
MOST_DIGITS: Final = 8  # of a multipleOf
MOST_COUNT: Final = 10**6  # of characters, items, properties


def is_count(value: object) -> bool:
    """Whether a number of characters, items or properties can be followed."""
    return type(value) in (int, float) and value in range(MOST_COUNT + 1)


def is_step(value: object) -> bool:
    """Whether a multipleOf can be followed at all; a large one may still cost too much."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return False
    return len(Decimal(str(value)).normalize().as_tuple().digits) <= MOST_DIGITS and value < 2**32


def numbers_in(value: object) -> Iterator[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def is_exact(number: int | float) -> bool:
    """Whether an answer that must have this number has all of its digits."""
    return abs(number) <= EXACT and (number == 0 or abs(number) >= 1e-20)


def bound(value: object, is_lower: bool) -> int | float | None:
    """A bound for llguidance that lets nothing beyond `value` pass; None if there is none.

    One far below zero, or far above for an upper bound, is the last that llguidance has.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return value
    sign = 1 if is_lower else -1
    least = max(sign * int(value), -_LARGEST_INTEGER)
    if least > LARGEST:
        return None
    rounded = float(least)
    while int(rounded) < least:
        rounded = math.nextafter(rounded, math.inf)
    return sign * int(rounded)


Json = object
WITHOUT: Final = "leave it out, and check the answer yourself"
_Node = dict[str, Json]
_LOOKS: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!])|\\[bB1-9k])")
_APPLICATORS: Final = frozenset("$ref allOf anyOf oneOf if dependentSchemas".split())
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def rewritten(schema: Mapping[str, Json], place: str) -> _Node:
    """`schema` at the JSON pointer `place`, its inner schemas as they are. Raises UserError by pointer."""
    node = {key: value for key, value in schema.items() if value not in TRIVIAL.get(key, ())}
    _check_values(node, place)
    _bounds(node, place)
    _check_patterns(node, place)
    _inner(node, place)
    return node


def refused(place: str, reason: str) -> UserError:
    """A part of a schema can't be kept."""
    return UserError(f"the JSON schema at {place or '/'}: {reason}")


def escaped(name: str) -> str:
    """`name` in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def short(value: Json) -> str:
    """The first characters of `value` as JSON."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _check_values(node: _Node, place: str) -> None:
    kinds = node.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in TYPES:
            raise refused(f"{place}/type", f"{short(kind)} is none of {', '.join(sorted(TYPES))}")
    for key in ("const", "enum"):
        for number in numbers_in(node.get(key)):
            if not is_exact(number):
                reason = f"{short(number)} can't be written with all its digits: write it as text"
                raise refused(f"{place}/{key}", reason)
    for key in _COUNTS:
        if key in node and not is_count(node[key]):
            raise refused(f"{place}/{key}", f"must be 0 to {MOST_COUNT}, not {short(node[key])}")
        node |= {key: int(str(node[key]).partition(".")[0])} if key in node else {}
    if "multipleOf" in node and not is_step(node["multipleOf"]):
        reason = f"must be a number above 0 with at most {MOST_DIGITS} digits"
        raise refused(f"{place}/multipleOf", reason)


def _bounds(node: _Node, place: str) -> None:
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and key in node:  # draft 4
            node[exclusive] = node.pop(key)
        for name in {key, exclusive} & set(node):
            limit = bound(node[name], is_lower=key == "minimum")
            if limit is None:
                reason = f"{short(node[name])} is no number that a form can be bounded by: ask for text"
                raise refused(f"{place}/{name}", reason)
            node[name] = limit


def _check_patterns(node: _Node, place: str) -> None:
    named = node.get("patternProperties")
    patterns = [("pattern", node.get("pattern"))]
    if isinstance(named, Mapping):
        patterns += [(f"patternProperties/{escaped(each)}", each) for each in named]
    for where, pattern in patterns:
        if isinstance(pattern, str) and (result := _LOOKS.search(pattern)):
            reason = f"{result[0]!r} looks around or back, which is not supported: leave it out"
            raise refused(f"{place}/{where}", reason)


def _inner(node: _Node, place: str) -> None:
    if isinstance(node.get("items"), list):  # up to draft 2019-09
        node["prefixItems"], node["items"] = node["items"], node.get("additionalItems", True)
    node.pop("additionalItems", None)
    if node.get("maxItems") in (0, 1):
        node.pop("uniqueItems", None)
    for rest, kept in (("unevaluatedItems", "items"), ("unevaluatedProperties", "additionalProperties")):
        if rest in node and (kept in node or not _APPLICATORS & set(node)):
            node.setdefault(kept, node.pop(rest))
    if not {"then", "else"} & set(node):
        node.pop("if", None)
    _names(node)
    named, required = node.get("properties"), node.get("required")
    always = {str(each) for each in required} if isinstance(required, list) else set()
    is_open = isinstance(named, Mapping) and not set(named) <= always
    for key in {"minProperties", "maxProperties"} & set(node) if is_open else ():
        raise refused(f"{place}/{key}", "it needs all properties in required: leave it out, or require them")
    least = node.get("minProperties")
    if isinstance(least, int) and least > max(1, len(always)):
        reason = f"an answer may have a name twice: name {least} in required, or leave it out"
        raise refused(f"{place}/minProperties", reason)


def _names(node: _Node) -> None:
    """Names of properties that a pattern or a list gives, written as what llguidance has."""
    names = node.get("propertyNames")
    if not isinstance(names, Mapping) or {"properties", "patternProperties"} & set(node):
        return
    others, keys = node.get("additionalProperties", True), set(names) - SILENT - {"type"}
    if keys == {"pattern"}:
        node["patternProperties"] = {str(names["pattern"]): others}
    elif keys == {"enum"} and isinstance(names["enum"], list):
        node["properties"] = {str(each): others for each in names["enum"]}
    else:
        return
    del node["propertyNames"]
    node["additionalProperties"] = False


_ROOT: Final = "https://schema.invalid/"


@dataclass(frozen=True)
class _Home:
    """The resource that a schema belongs to."""

    base: str
    resource: Mapping[str, object]


class Identity:
    """The schemas within one schema, by what they are called."""

    def __init__(self, root: Mapping[str, object]) -> None:
        """`root` is read, and kept."""
        self._homes: dict[int, _Home] = {}
        self._resources: dict[str, Mapping[str, object]] = {_ROOT: root}
        self._anchors: dict[tuple[int, str], object] = {}  # by resource and name
        self._index(root, _Home(_ROOT, root))

    def target(self, schema: Mapping[str, object], reference: str) -> object:
        """The schema that a $ref in `schema` names. Raises LookupError."""
        home = self._homes[id(schema)]
        # A base may be a URN, to which urljoin adds nothing.
        is_own = reference.startswith("#")
        place, fragment = urldefrag(home.base + reference if is_own else urljoin(home.base, reference))
        resource = home.resource if place == home.base else self._resources[place]
        if fragment and not fragment.startswith("/"):
            return self._anchors[id(resource), unquote(fragment)]
        result: object = resource
        for key in unquote(fragment).split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            if isinstance(result, Mapping):
                home = self._homes.get(id(result), home)
                result = result[name]
            elif isinstance(result, list) and name.isdecimal():
                result = result[int(name)]
            else:
                raise LookupError(name)
        if isinstance(result, Mapping) and id(result) not in self._homes:
            self._index(result, home)  # behind a keyword that we don't know
        return result

    def _index(self, schema: Mapping[str, object], home: _Home) -> None:
        name = schema.get("$id", schema.get("id"))
        if isinstance(name, str) and not name.startswith("#"):
            home = _Home(urldefrag(urljoin(home.base, name))[0], schema)
            self._resources.setdefault(home.base, schema)
        self._homes[id(schema)] = home
        for anchor in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
            if isinstance(anchor, str):
                self._anchors[id(home.resource), anchor] = schema
        for inner in schemas_in(schema):
            self._index(inner, home)


def schemas_in(schema: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The schemas directly within `schema`, except true and false."""
    for key, value in schema.items():
        results: list[object] = []
        if key in keywords.NAMED_SCHEMAS and isinstance(value, Mapping):
            results = list(value.values())
        elif key in keywords.SCHEMAS and isinstance(value, list):
            results = value
        elif key in keywords.SCHEMA:
            results = [value]
        yield from (each for each in results if isinstance(each, Mapping))


@dataclass(frozen=True)
class PlainSchema:
    """A schema that llguidance can read, and what asserted nothing in the original."""

    schema: Mapping[str, Json]
    left_out: tuple[str, ...]


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
        results: dict[str, Json] = {}
        while self._open:
            name, target = self._open.pop()
            results[name] = self._schema(target, f"/$defs/{name}")
        if isinstance(made, dict) and results:
            made = {**made, "$defs": results}
        if not isinstance(made, dict):
            raise refused("", "no value fits it: remove the not")
        return PlainSchema(made, tuple(self._left_out))

    def _schema(self, schema: Json, place: str) -> Json:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise refused(place, f"a schema is an object, true or false, not {short(schema)}")
        if schema.get("not") in (True, {}):
            return False
        made: dict[str, Json] = {}
        for key, value in rewritten(schema, place).items():
            treatment = keywords.KEYWORDS.get(key, "annotation")
            if treatment == "refused":
                raise refused(f"{place}/{key}", f"this keyword is not supported: {WITHOUT}")
            if treatment == "annotation":
                self._note(key)
            elif key == "$ref":
                made[key] = self._reference(schema, value, f"{place}/$ref")
            elif key == "format" and not (isinstance(value, str) and value in keywords.FORMATS):
                self._note(f"format {short(value)}")
            elif key not in ("$id", "id", "$anchor", "$defs", "definitions"):
                made[key] = self._inner(key, value, f"{place}/{key}")
        return made

    def _inner(self, key: str, value: Json, place: str) -> Json:
        """The value of a keyword, whose schemas are passed as well."""
        if key in keywords.NAMED_SCHEMAS:
            if not isinstance(value, Mapping):
                raise refused(place, "must be an object of schemas")
            return {name: self._schema(each, f"{place}/{escaped(name)}") for name, each in value.items()}
        if key in keywords.SCHEMAS and isinstance(value, list):
            return [self._schema(each, f"{place}/{number}") for number, each in enumerate(value)]
        return self._schema(value, place) if key in keywords.SCHEMA else value

    def _reference(self, schema: Mapping[str, Json], reference: Json, place: str) -> str:
        try:
            target = self._identity.target(schema, str(reference))
        except (LookupError, ValueError):
            reason = f"nothing in this schema is called {short(reference)}: put it into $defs"
            raise refused(place, reason) from None
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"s{len(self._names)}"
            self._open.append((name, target))
        return f"#/$defs/{name}"

    def _note(self, name: str) -> None:
        if name not in keywords.SILENT:
            self._left_out[name] = None


def places_of(schema: Json, keyword: str, part: str = "", place: str = "") -> list[str]:
    """The JSON pointers of `keyword`, where its value contains the text `part`."""
    if isinstance(schema, list):
        parts = [(str(number), each) for number, each in enumerate(schema)]
    else:
        parts = list(schema.items()) if isinstance(schema, Mapping) else []
    results = []
    for name, value in parts:
        inner = f"{place}/{escaped(name)}"
        if name == keyword and part in str(value):
            results.append(inner)
        results += places_of(value, keyword, part, inner)
    return results
