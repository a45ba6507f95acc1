"""TOML files of the course: tables that become dataclasses, and errors that name the file and the row."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tiny_llm_lab.types import UserError

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises UserError if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path.name} is not valid TOML: {error}") from None


def built(kind: Callable[..., T], row: dict[str, Any], table: str) -> T:
    """A row as a dataclass. Raises UserError for an extra or a missing key."""
    try:
        return kind(**row)
    except TypeError as error:
        reason = str(error).partition("__init__() ")[2]
        raise UserError(f"[[{table}]] {row.get('id', row.get('says', ''))}: {reason}") from None
