"""Fields of a request that a route does not take: ignored, because they limit no answer, or refused."""

import logging
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from tiny_llm_lab.serving.server.errors import ApiError

_LOG: Final = logging.getLogger("tiny_llm.server")
_MOST_NAMED: Final = 8  # unknown fields in a line of the log
# By name: why an answer is the same without the field; what to do instead; values that ask for nothing.
_TABLE: Final = tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))
IGNORED: Final[Mapping[str, str]] = _TABLE["ignored"]
REFUSED: Final[Mapping[str, str]] = _TABLE["refused"]
_HARMLESS: Final[Mapping[str, Sequence[object]]] = _TABLE["harmless"]


def require_supported(body: Mapping[str, object], taken: Collection[str]) -> None:
    """Raise ApiError for a field of `body` that asks for something, and is not among the `taken` ones.

    Fields that nobody has heard of change nothing, and the log names them.
    """
    others = sorted(body.keys() - taken)
    for name in others:
        if asks(name, body[name]):
            raise ApiError(400, f"{name} is not supported: {REFUSED[name]}", param=name)
    unknown = [ascii(name[:40]) for name in others if name not in IGNORED and name not in REFUSED]
    if unknown:
        _LOG.info("unknown fields change nothing: %s", ", ".join(unknown[:_MOST_NAMED]))


def asks(name: str, value: object) -> bool:
    """Whether a field is refused where it is not taken, and its value asks for something."""
    return name in REFUSED and bool(value) and value not in _HARMLESS.get(name, ())
