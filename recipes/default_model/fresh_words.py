"""Words that the notes of the corpus do not have, and facts made of them.

Most of them take several tokens. Only the evaluation uses one in five: see `is_fresh_held_out`.
"""

import random
import string
import zlib
from functools import cache
from typing import Final

from tiny_llm_lab.measure.corpus.recall import Fact
from tiny_llm_lab.measure.corpus.words import ADJECTIVES, PLACES, THINGS

from .strange_facts import invented_word
from .texts import texts

HELD_OUT_ONE_IN: Final = 5
_FREQUENT: Final = ("in", "on", "the", "under", "near", "keep", "be", "where", "who", "what", "do")

_WORDS: Final = texts("fresh_words")
FRESH_NAMES: Final[tuple[str, ...]] = tuple(_WORDS["names"].split())
FRESH_THINGS: Final[tuple[str, ...]] = tuple(_WORDS["things"].split())
FRESH_ADJECTIVES: Final[tuple[str, ...]] = tuple(_WORDS["adjectives"].split())
FRESH_PLACES: Final[tuple[tuple[str, str], ...]] = tuple(
    (preposition, place) for preposition, places in _WORDS["places"].items() for place in places.split()
)


def is_fresh_held_out(word: str) -> bool:
    """Whether training never sees this word: a rule, so no list has to be stored."""
    return zlib.crc32(word.lower().encode()) % HELD_OUT_ONE_IN == 0


@cache  # a fact asks for three lists, and a row of training has dozens of facts
def side_of(words: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    """The words that only the evaluation uses, or all others."""
    return tuple(word for word in words if is_fresh_held_out(word) == held_out)


@cache
def _places(held_out: bool) -> tuple[tuple[str, str], ...]:
    return tuple(at for at in FRESH_PLACES if is_fresh_held_out(at[1]) == held_out)


def spliced(rng: random.Random, words: tuple[str, ...]) -> str:
    """The beginning of one word and the end of another, since words begin with only a few dozen tokens.

    Some begin with any letter, or with a frequent word that may come right before them in a sentence. Never
    a word that is held out.
    """
    while True:
        last, draw = rng.choice(words)[rng.randint(1, 3) :], rng.random()
        first = rng.choice(words)[: rng.randint(1, 4)]
        if draw < 0.4:
            first = rng.choice(string.ascii_lowercase if draw < 0.25 else _FREQUENT)
        word = (first + last).lower()
        if not is_fresh_held_out(word):
            return word


def make_fresh_fact(rng: random.Random, name: str, held_out: bool = False, share: float = 0.6) -> Fact:
    """A fact with words that the lists of the corpus do not hold; `share` of its parts are such.

    With `held_out`, all of these are words that training never sees; without, none. `name` is what the name
    is otherwise.
    """

    def pick(fresh: tuple[str, ...], known: tuple[str, ...]) -> str:
        if rng.random() >= share:
            return rng.choice(known)
        words = side_of(fresh, held_out)
        made = 1.0 if held_out else rng.random()
        if made < 0.4:
            return spliced(rng, words) if made < 0.3 else invented_word(rng, rng.randint(2, 3))
        return rng.choice(words)

    preposition, place = rng.choice(PLACES)
    if rng.random() < share:
        preposition, place = rng.choice(_places(held_out))
    name = pick(FRESH_NAMES, (name,))
    return Fact(
        name[0].upper() + name[1:],
        pick(FRESH_ADJECTIVES, ADJECTIVES),
        pick(FRESH_THINGS, THINGS),
        preposition,
        place,
    )
