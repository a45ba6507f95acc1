"""Text that a user gives in a file or on stdin."""

import sys
from pathlib import Path
from typing import Final

from tiny_llm_lab.types import UserError

_LONGEST: Final = 2**31  # bytes of a file; the published ShareGPT file has a third of it
_LONGEST_STREAM: Final = 2**26  # characters of a pipe or device, which may never end


def read_text(source: str, otherwise: str = "name another file") -> str:
    """The UTF-8 text of the file `source` (- is stdin), without a byte order mark.

    Raises UserError for one that cannot be read, with the cure `otherwise`, or that is too long: 2 GiB, or
    64 MiB of something that is not a regular file.
    """
    path = Path(source)
    try:
        if source == "-":
            text = sys.stdin.read(_LONGEST_STREAM + 1)
        elif not path.is_file():
            with path.open(encoding="utf-8") as stream:
                text = stream.read(_LONGEST_STREAM + 1)
        elif path.stat().st_size > _LONGEST:
            raise UserError(f"{source} has more than {_LONGEST >> 30} GiB: split it")
        else:
            return path.read_text(encoding="utf-8-sig")  # some editors on Windows begin a file with a mark
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}: {otherwise}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{'stdin' if source == '-' else source} is not UTF-8 text: convert it first"
        ) from None
    if len(text) > _LONGEST_STREAM:
        raise UserError(f"{source} has more than {_LONGEST_STREAM >> 20} MiB: write a file, and name it")
    return text.removeprefix("\ufeff")
