"""The word lists of the corpus, in words.toml."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_LISTS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NAMES: Final[tuple[str, ...]] = tuple(_LISTS["names"].split())
ADJECTIVES: Final[tuple[str, ...]] = tuple(_LISTS["adjectives"].split())
THINGS: Final[tuple[str, ...]] = tuple(_LISTS["things"].split())
ANIMALS: Final[tuple[str, ...]] = tuple(_LISTS["animals"].split())
# Each place with the preposition that reads best before it.
PLACES: Final[tuple[tuple[str, str], ...]] = tuple(
    (preposition, place) for preposition, places in _LISTS["places"].items() for place in places.split()
)
# Fillers, with a word for each slot.
SENTENCES: Final[tuple[str, ...]] = tuple(_LISTS["fillers"].pop("sentences"))
SLOTS: Final[dict[str, Sequence[str]]] = {
    **{"adjective": ADJECTIVES, "thing": THINGS, "animal": ANIMALS, "place": [place for _, place in PLACES]},
    **_LISTS["fillers"],
}
ALL_SLOT_WORDS: Final[tuple[str, ...]] = ADJECTIVES + THINGS + tuple(place for _, place in PLACES)
