"""The texts that generators draw from: a TOML file next to each."""

import tomllib
from pathlib import Path
from typing import Any


def texts(name: str) -> dict[str, Any]:
    """What NAME.toml has, its lists of strings as tuples."""
    table = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
