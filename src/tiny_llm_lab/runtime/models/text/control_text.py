"""Keeps typed text as text: if a tokenizer would read a control token in it, we cut the text in two."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tiny_llm_lab.types import UserError

_MAX_DEPTH: Final = 100  # of lists and mappings in each other
# What the format of messages and tools itself says: templates compare it, and build control tokens of roles.
_FORMAT_KEYS: Final = frozenset(
    "role content name type text function tools tool_calls tool_call_id id arguments reasoning_content "
    "description parameters properties required items enum strict".split()
)
_FORMAT_VALUES: Final = frozenset(
    "system developer user assistant tool function text object array string number integer boolean".split()
)


class ControlText:
    """Finds the names of a tokenizer's control tokens, whole and in pieces that a template might complete."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` of one character, and those of blanks only, count as ordinary text."""
        names = sorted({name for name in names if len(name) > 1 and name.strip(" \t\r\n\u2581")})
        self._longest = max(map(len, names), default=0)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None
        self._ends = {name[:size] for name in names for size in range(1, len(name))}
        starts = {name[size:] for name in names for size in range(1, len(name))}
        # A sign at the beginning of a text, such as "> quoted", does not complete a template's token.
        self._starts = {start for start in starts if any(map(str.isalnum, start))}
        # '<' + typed + '>' of a template: `think` has all letters of `<think>`.
        self._cores = {core for name in names for core in _cores(name)}

    def marked(self, value: object, mark: str, depth: int = 0) -> object:
        """A copy of `value` with `mark` in all its strings, wherever text must be cut.

        Names that the format of messages and tools fixes stay as they are. Raises UserError for lists and
        mappings nested too deeply.
        """
        if depth > _MAX_DEPTH:
            raise UserError(f"a message or a tool has more than {_MAX_DEPTH} levels of nesting: flatten it")
        if isinstance(value, str):
            return self.marked_text(value, mark)
        if isinstance(value, Mapping):
            return {
                key if key in _FORMAT_KEYS else self.marked(key, mark): each
                if key in ("role", "type") and isinstance(each, str) and each in _FORMAT_VALUES
                else self.marked(each, mark, depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self.marked(each, mark, depth + 1) for each in value]
        return value

    def marked_text(self, text: str, mark: str) -> str:
        """`text` with `mark` wherever it must be cut."""
        cuts = sorted(set(self._cuts(text)))
        if not cuts:
            return text
        places = [0, *cuts, len(text)]
        return mark.join(text[a:b] for a, b in pairwise(places))

    def _cuts(self, text: str) -> Iterator[int]:
        word = text.strip()  # as templates trim it
        sizes = range(1, min(self._longest, len(word) + 1))
        if word in self._cores or any(word[:size] in self._starts for size in sizes):
            yield text.index(word)
        if any(word[-size:] in self._ends for size in sizes):
            yield text.index(word) + len(word)
        place = 0
        # After the first character of a name, also where the next name overlaps it.
        while self._names is not None and (found := self._names.search(text, place)):
            place = found.start() + 1
            yield place


def new_mark() -> str:
    """A text that occurs nowhere else: digits, which templates don't trim, escape or capitalize."""
    return f"{secrets.randbits(128):039d}"


def _cores(name: str) -> Iterator[str]:
    """The parts of `name` that have all of its letters and digits."""
    places = [i for i, character in enumerate(name) if character.isalnum()]
    if places:
        first, last = places[0], places[-1]
        yield from (name[a : b + 1] for a in range(first + 1) for b in range(last, len(name)))
