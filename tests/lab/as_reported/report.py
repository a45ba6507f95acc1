"""A bug that somebody reported, of this server or of another: one line of a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2


@dataclass(frozen=True)
class Report:
    """`source` is the report's number, `symptom` its words; `body` is posted to `path`.

    `right` is what the answer must have: a path of keys and numbers, joined by dots, and its value. A path
    that ends in `~` asks that the text contains the value, in `!` that it does not; "status" is HTTP's.
    """

    source: str
    symptom: str
    path: str
    body: Mapping[str, Any]
    right: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.source}: {self.symptom}".replace("::", ":")

    def check(self, answer: httpx2.Response) -> None:
        """Assert that `answer` is the right one."""
        found = answer.json()
        for place, value in {"status": 200, **self.right}.items():
            seen: Any = answer.status_code if place == "status" else _at(found, place.rstrip("~!"))
            where = f"{self.id}: {place} is {seen!r} in {answer.text[:600]}"
            if place.endswith("~"):
                assert value in seen, where
            elif place.endswith("!"):
                assert value not in seen, where
            else:
                assert seen == value, where


def _at(found: Any, place: str) -> Any:
    """What `found` has there."""
    for key in place.split("."):
        found = found[int(key) if key.isdecimal() else key]
    return found
