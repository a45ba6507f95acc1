"""What a $ref names: JSON Schema's rules of identity, 2020-12 core section 8.2."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

from tiny_llm_lab.runtime.structured.json_schema.keywords import NAMED_SCHEMAS, SCHEMA, SCHEMAS

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
        found: object = resource
        for key in unquote(fragment).split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                home = self._homes.get(id(found), home)
                found = found[name]
            elif isinstance(found, list) and name.isdecimal():
                found = found[int(name)]
            else:
                raise LookupError(name)
        if isinstance(found, Mapping) and id(found) not in self._homes:
            self._index(found, home)  # behind a keyword that we don't know
        return found

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
        found: list[object] = []
        if key in NAMED_SCHEMAS and isinstance(value, Mapping):
            found = list(value.values())
        elif key in SCHEMAS and isinstance(value, list):
            found = value
        elif key in SCHEMA:
            found = [value]
        yield from (each for each in found if isinstance(each, Mapping))
