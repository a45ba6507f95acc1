"""A C++ compiler's messages about a source, cut down to its errors."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PLACE: Final = re.compile(r"^(?P<path>[^\s:]+):(?P<line>\d+):(?:\d+:)? +(?P<says>.*)$")
_ERROR: Final = re.compile(r"(?:fatal )?error: ")
# A template is compiled for every type it is used with. GCC says where before the error, Clang behind it.
_USED_BELOW: Final = "required from"
_USED_ABOVE: Final = "note: in instantiation"
# Lines of source and marks that are shown below an error.
_CONTEXT: Final = 3
_MOST: Final = 3


@dataclass
class _Error:
    text: list[str]
    is_own: bool
    used_at: str | None = None  # the place in the learner's code that led to an error in given code


def errors_in(said: str, folder: Path, most: int = _MOST) -> str:
    """The first `most` errors with their lines of source, each place once; all that was said without any.

    An error in a file that is not below `folder` is followed by the place in `folder` that led to it.
    """
    errors = _errors(said.splitlines(), folder)
    if not errors:
        return said.strip()
    more = len(errors) - most
    rest = [f"and {more} more error{'s' * (more > 1)}"] if more > 0 else []
    return "\n".join([*(line for each in errors[:most] for line in _shown(each)), *rest])


def _shown(error: _Error) -> Iterator[str]:
    yield from error.text
    if error.used_at is not None and not error.is_own:
        yield f"  used at {error.used_at}"


def _errors(lines: Sequence[str], folder: Path) -> list[_Error]:
    found: dict[tuple[str, str], _Error] = {}
    used_at, last = None, None
    for number, line in enumerate(lines):
        match = _PLACE.match(line)
        if match is None:
            continue
        is_own = Path(match["path"]).is_relative_to(folder)
        if is_own and match["says"].startswith(_USED_BELOW):
            used_at = used_at or f"{match['path']}:{match['line']}"
        elif is_own and match["says"].startswith(_USED_ABOVE) and last is not None:
            last.used_at = last.used_at or f"{match['path']}:{match['line']}"
        elif _ERROR.match(match["says"]):
            last = _Error([line, *_context(lines[number + 1 :])], is_own, used_at)
            last = found.setdefault((match["path"], match["line"]), last)
            used_at = None
    return list(found.values())


def _context(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[:_CONTEXT]:
        if not line.startswith(" "):
            return
        yield line
