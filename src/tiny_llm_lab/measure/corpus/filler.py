"""Sentences between facts, in plain English, that say nothing about who keeps what."""

import random
from typing import Final

from tiny_llm_lab.measure.corpus.words import ADJECTIVES, ANIMALS, PLACES, THINGS

_OPENINGS: Final = (
    "Today", "At noon", "Later", "In the morning", "After lunch", "That night", "Once more", "Soon",
)  # fmt: skip
_WEATHER: Final = ("the rain", "the wind", "the snow", "the sun", "the fog", "a storm")
_WEATHER_DID: Final = (
    "came back", "went away", "lasted all day", "was strong", "came from the sea", "was gone",
)  # fmt: skip
_ANIMAL_DID: Final = (
    "slept", "ran away", "looked up", "sat still", "made a noise", "walked by", "was hungry",
    "waited for food",
)  # fmt: skip
_PLACE_WAS: Final = ("quiet", "warm", "cold", "dark", "open", "closed", "full of people", "empty", "busy")
_THING_WAS: Final = (
    "very old", "for sale", "too big", "a gift", "not there", "lost long ago", "hard to find",
)  # fmt: skip
_PEOPLE: Final = (
    "Someone", "A child", "The teacher", "An old man", "A woman", "The baker", "A friend", "Nobody",
)  # fmt: skip
_PEOPLE_DID: Final = (
    "talked about the weather", "sang a song", "asked for bread", "was late again", "told a long story",
    "laughed out loud", "went home early", "drank some tea", "read the news",
)  # fmt: skip


def _weather(rng: random.Random) -> str:
    return f"{rng.choice(_OPENINGS)} {rng.choice(_WEATHER)} {rng.choice(_WEATHER_DID)}."


def _animal(rng: random.Random) -> str:
    return f"The {rng.choice(ADJECTIVES)} {rng.choice(ANIMALS)} {rng.choice(_ANIMAL_DID)}."


def _place(rng: random.Random) -> str:
    return f"The {rng.choice(PLACES)[1]} was {rng.choice(_PLACE_WAS)}."


def _thing(rng: random.Random) -> str:
    return f"The {rng.choice(ADJECTIVES)} {rng.choice(THINGS)} was {rng.choice(_THING_WAS)}."


def _person(rng: random.Random) -> str:
    return f"{rng.choice(_PEOPLE)} {rng.choice(_PEOPLE_DID)}."


_KINDS: Final = (_weather, _animal, _place, _thing, _person)


def make_filler(rng: random.Random) -> str:
    """One filler sentence; it names no one."""
    return rng.choice(_KINDS)(rng)
