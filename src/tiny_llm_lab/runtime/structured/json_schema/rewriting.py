"""The keywords of one schema as llguidance takes them."""

import json
import re
from collections.abc import Mapping
from typing import Final

from tiny_llm_lab.runtime.structured.json_schema import numbers
from tiny_llm_lab.runtime.structured.json_schema.keywords import SILENT, TRIVIAL, TYPES
from tiny_llm_lab.types import UserError

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
        for number in numbers.numbers_in(node.get(key)):
            if not numbers.is_exact(number):
                reason = f"{short(number)} can't be written with all its digits: write it as text"
                raise refused(f"{place}/{key}", reason)
    for key in _COUNTS:
        if key in node and not numbers.is_count(node[key]):
            raise refused(f"{place}/{key}", f"must be 0 to {numbers.MOST_COUNT}, not {short(node[key])}")
        node |= {key: int(str(node[key]).partition(".")[0])} if key in node else {}
    if "multipleOf" in node and not numbers.is_step(node["multipleOf"]):
        reason = f"must be a number above 0 with at most {numbers.MOST_DIGITS} digits"
        raise refused(f"{place}/multipleOf", reason)


def _bounds(node: _Node, place: str) -> None:
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool) and node.pop(exclusive) and key in node:  # draft 4
            node[exclusive] = node.pop(key)
        for name in {key, exclusive} & set(node):
            bound = numbers.bound(node[name], is_lower=key == "minimum")
            if bound is None:
                reason = f"{short(node[name])} is no number that a form can be bounded by: ask for text"
                raise refused(f"{place}/{name}", reason)
            node[name] = bound


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
