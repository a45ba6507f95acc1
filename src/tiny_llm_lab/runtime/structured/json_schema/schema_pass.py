"""One pass over a JSON schema before llguidance reads it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

from tiny_llm_lab.runtime.structured.json_schema import keywords
from tiny_llm_lab.runtime.structured.json_schema.rewriting import (
    WITHOUT,
    Json,
    escaped,
    refused,
    rewritten,
    short,
)
from tiny_llm_lab.types import UserError

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
