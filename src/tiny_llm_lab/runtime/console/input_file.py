"""Text that a user gives in a file or on stdin, and JSON in a text."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.types import UserError

_LONGEST: Final = 2**31  # characters; the published ShareGPT file has a third of it
_LONGEST_STREAM: Final = 2**26  # of a pipe or a device, which may never end


def read_text(source: str, otherwise: str = "name another file") -> str:
    """The UTF-8 text of the file `source` (- is stdin), without a byte order mark.

    Raises UserError for one that cannot be read, with the cure `otherwise`, or that is too long: 2 Gi
    characters, or 64 Mi of something that is not a regular file.
    """
    most = _LONGEST if Path(source).is_file() else _LONGEST_STREAM
    try:
        with nullcontext(sys.stdin) if source == "-" else Path(source).open(encoding="utf-8") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}: {otherwise}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{'stdin' if source == '-' else source} is not UTF-8 text: convert it first"
        ) from None
    if len(text) > most:
        raise UserError(f"{source} has more than {most >> 20} MiB: write a smaller file, and name it")
    return text.removeprefix("\ufeff")  # some editors on Windows begin a file with it


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The object that a JSON text is; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
