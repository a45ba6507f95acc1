"""`serve --config FILE`: flags in a TOML file, and a table of them for each model."""

import json
import tomllib
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.console.commands import CommandParser
from tiny_llm_lab.types import UserError

_PINNED: Final = "pinned"


@dataclass(frozen=True)
class ConfigFile:
    """The words of a command line that are in a file: those for all models, and those of each table."""

    path: str
    words: Sequence[str]
    models: Mapping[str, Sequence[str]]
    pinned: frozenset[str]

    @staticmethod
    def read(path: str) -> "ConfigFile":
        """Read a file: a key is a flag without its dashes, and [models.NAME] has what NAME has of its own.

        Raises UserError for a file that can't be read, and for values that no flag has.
        """
        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--config {path}: {reason}: give a TOML file in UTF-8") from None
        if "config" in table:
            raise UserError(f"--config {path}: a file can't name another one: write all flags into it")
        models = table.pop("models", {})
        if not isinstance(models, dict) or not all(isinstance(own, dict) for own in models.values()):
            raise UserError(f'--config {path}: models must be tables: write [models.NAME] and model = "..."')
        pinned = {name: own.pop(_PINNED, False) for name, own in models.items()}
        for name, value in pinned.items():
            if not isinstance(value, bool):
                raise UserError(f"--config {path}: [models.{name}]: pinned must be true or false")
        words = {name: _words(own) for name, own in models.items()}
        return ConfigFile(path, _words(table), words, frozenset(name for name in pinned if pinned[name]))

    def parsed(self, parser: CommandParser, typed: Sequence[str]) -> Namespace:
        """The flags for all models; a flag that was typed wins."""
        with self._blamed(""):
            parser.parse_args(self.words)  # so that an error in the file is not one in what was typed
        return parser.parse_args([*self.words, *typed])

    def parsed_model(
        self, name: str, parser: CommandParser, typed: Sequence[str], is_own: Callable[[Namespace], bool]
    ) -> Namespace:
        """The flags of one model. Raises UserError if its table has flags that are not a model's own."""
        words = self.models[name]
        with self._blamed(f"[models.{name}]: "):
            alone = parser.parse_args(words)
            if not any(word.startswith("--model=") for word in words):
                raise UserError('its model is missing: add model = "..."')
            if not is_own(alone):
                raise UserError("a flag of the server or of other models is here: write it above the tables")
        return parser.parse_args([*self.words, *words, *typed])

    @contextmanager
    def _blamed(self, place: str) -> Any:
        try:
            yield
        except UserError as error:
            raise UserError(f"--config {self.path}: {place}{error}") from None


def _words(table: Mapping[str, object]) -> list[str]:
    """The words of a command line that say the same as a table."""
    return [word for key, value in table.items() for word in _flag(key.replace("_", "-"), value)]


def _flag(key: str, value: object) -> list[str]:
    match value:
        case bool():
            return [f"--{'' if value else 'no-'}{key}"]
        case list():
            return [word for each in value for word in _flag(key, each)]
        case dict():
            return [f"--{key}={json.dumps(value)}"]
    return [f"--{key}={value}"]
