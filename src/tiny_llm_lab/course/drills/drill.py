"""A drill: a known mistake by its key, a user's complaint, and answers of which one is right."""

import hashlib
import random
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.mistake import Mistake
from tiny_llm_lab.course.toml_rows import built, read_toml
from tiny_llm_lab.types import UserError

_FOLDER: Final = Path(__file__).parent
# Of a request in a load: a name, and bodies of /v1/completions (see `load`).
Entry = Mapping[str, Any]


def key_of(mistake: Mistake) -> str:
    """Names a mistake without telling it."""
    return hashlib.sha256(f"{mistake.file}:{mistake.says}".encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Drill:
    """One of the drills; keys are those of `key_of`."""

    number: int
    mistake: str  # the key of the right answer
    others: tuple[str, ...]  # keys of the wrong ones
    complaint: str  # a user's words
    flags: str  # of `serve`
    look: tuple[str, ...]  # where to look, in the order of a search
    load: Sequence[Sequence[Entry]]  # the requests of a wave are sent together, the next wave after their end

    @property
    def serve_arguments(self) -> list[str]:
        return shlex.split(self.flags)

    @property
    def choices(self) -> dict[str, str]:
        """Keys by letter; their order depends on the number of the drill alone."""
        keys = sorted((self.mistake, *self.others))
        random.Random(f"choices of {self.number}").shuffle(keys)
        return dict(zip(string.ascii_uppercase, keys, strict=False))

    @property
    def right(self) -> str:
        """The letter of the right answer."""
        return next(letter for letter, key in self.choices.items() if key == self.mistake)


@dataclass(frozen=True)
class Drills:
    """All drills, in order, the mistakes that they name, and what gives each hidden one away."""

    drills: tuple[Drill, ...]
    mistakes: Mapping[str, Mistake]
    reasons: Mapping[str, str]

    def drill(self, number: int) -> Drill:
        """The drill with this number. Raises UserError for another."""
        if not 1 <= number <= len(self.drills):
            raise UserError(f"there is no drill {number}: choose 1 to {len(self.drills)}")
        return self.drills[number - 1]

    def says(self, key: str) -> str:
        """What a mistake does, in a sentence."""
        return self.mistakes[key].says


def load_drills(course: Course) -> Drills:
    """The drills of the course. Raises UserError for a key that is no known mistake's."""
    known = {key_of(mistake): mistake for mistake in course.mistakes()}
    drills = tuple(_drill(number, row) for number, row in enumerate(_rows(), 1))
    named = {key for drill in drills for key in (drill.mistake, *drill.others)}
    if strange := sorted(named - known.keys()):
        raise UserError(
            f"drills.toml: {strange[0]} is the key of no known mistake: was its sentence changed?"
        )
    return Drills(drills, {key: known[key] for key in named}, read_toml(_FOLDER / "reasons.toml"))


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_toml(_FOLDER / "drills.toml")["drill"]
    return rows


def _drill(number: int, row: dict[str, Any]) -> Drill:
    lists = {name: tuple(row.get(name, ())) for name in ("others", "look")}
    return built(Drill, row | lists | {"number": number}, "drill")
