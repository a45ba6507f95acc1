"""What two requests must have in common to go to the same replica: the beginning of their prompts."""

import json
from collections.abc import Iterator
from typing import Any, Final

PREFIX_CHARS: Final = 512


def prefix_key(body: bytes, num_chars: int = PREFIX_CHARS) -> str | None:
    """The first characters, or token ids, of a request's prompt; None for a body that has no prompt."""
    try:
        request = json.loads(body)
        return _beginning(request, num_chars) if isinstance(request, dict) else None
    except (ValueError, RecursionError):
        return None


def _beginning(request: dict[str, Any], room: int) -> str | None:
    parts = list[str]()
    for name in ("instructions", "prompt", "messages", "input"):
        for piece in _pieces(request.get(name)):
            parts.append(piece[:room])
            room -= len(parts[-1])
            if room <= 0:
                break
    return "\n".join(parts) or None


def _pieces(value: object) -> Iterator[str]:
    """The strings and numbers inside of a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, list):
        for each in value:
            yield from _pieces(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _pieces(each)
