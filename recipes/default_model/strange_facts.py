"""Facts with invented words, which only training has: recall is learnt for spellings, not for known words."""

import random

from tiny_llm_lab.measure.corpus.recall import Fact, is_held_out, make_fact


def invented_word(rng: random.Random, syllables: int) -> str:
    """A word that no list holds, so that recall is learnt for spellings rather than for known words."""
    starts, vowels, ends = "bdfgklmnprstvz", "aeiou", ("", "", "n", "r", "l", "s", "m")
    parts = [rng.choice(starts) + rng.choice(vowels) + rng.choice(ends) for _ in range(syllables)]
    return "".join(parts)


def make_strange_fact(rng: random.Random, name: str) -> Fact:
    """A training fact with an invented name, and perhaps an invented thing or place."""
    while True:
        base = make_fact(rng, name, held_out=False)
        strange_name = invented_word(rng, 2).capitalize() if rng.random() < 0.6 else base.name
        thing = invented_word(rng, 2) if rng.random() < 0.4 else base.thing
        place = invented_word(rng, 2) if rng.random() < 0.4 else base.place
        fact = Fact(strange_name, base.adjective, thing, base.preposition, place)
        if not is_held_out(fact):
            return fact
