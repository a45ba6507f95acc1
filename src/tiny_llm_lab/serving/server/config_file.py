"""`serve --config FILE`: flags in a TOML file, and a table of them for each model."""

import json
import tomllib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.runtime.console.commands import CommandParser
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError

# Of the server, not of one of its models.
_SHARED: Final = {each.name for each in fields(ServerSettings)} | {"tensor_parallel_size"}


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

        Raises UserError for a file that can't be read, and for a table that is not a model's.
        """
        try:
            table = _underlined(tomllib.loads(Path(path).read_text("utf-8")))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--config {path}: {reason}: give a TOML file in UTF-8") from None
        models = table.pop("models", {})
        if "config" in table or not isinstance(models, dict):
            raise UserError(f"--config {path}: config and models are no flags here: write [models.NAME]")
        pinned = set()
        for name, own in models.items():
            place = f"--config {path}: [models.{name}]"
            if not isinstance(own, dict) or "model" not in own:
                raise UserError(f'{place}: its model is missing: write [models.{name}] and model = "..."')
            own = models[name] = _underlined(own)
            if shared := sorted(own.keys() & (_SHARED | {"config"})):
                raise UserError(f"{place}: {shared[0]} is not of one model: write it above the tables")
            if not isinstance(is_pinned := own.pop("pinned", False), bool):
                raise UserError(f"{place}: pinned must be true or false")
            pinned |= {name} if is_pinned else set()
        words = {name: _words(own) for name, own in models.items()}
        return ConfigFile(path, _words(table), words, frozenset(pinned))

    def parsed(self, parser: CommandParser, typed: Sequence[str], name: str = "") -> Namespace:
        """The flags of model `name`, of all without one; a flag that was `typed` wins, which has no error."""
        try:
            return parser.parse_args([*self.words, *self.models.get(name, ()), *typed])
        except UserError as error:
            place = f"[models.{name}]: " if name else ""
            raise UserError(f"--config {self.path}: {place}{error}") from None


def _underlined(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


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
