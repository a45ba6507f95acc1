"""Haikus of five, seven and five syllables, with what each is about."""

import random
from typing import Final

from .chat_markup import Turn

HAIKUS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("recursion in programming", "recursion", "recursive functions"),
     "A call calls itself,\nsmaller every time it does,\nthen the answers rise."),
    (("programming", "code", "computers", "software"),
     "Lines upon the screen,\none small word is out of place,\nand the night is long."),
    (("the sea", "the ocean", "water", "a river"),
     "The tide comes and goes,\nit takes the names from the sand\nand gives us back shells."),
    (("autumn", "a tree", "leaves", "nature"),
     "A leaf leaves the tree,\nit turns in the evening wind\nand is not in haste."),
    (("winter", "snow", "the cold"),
     "Snow on the old roof,\nthe whole village holds its breath,\nthen a dog runs out."),
    (("the moon", "the night", "stars"),
     "The moon in the pond,\na frog jumps, and for a while\nthere are many moons."),
    (("attention", "a language model", "tokens", "machine learning", "AI"),
     "Each word looks behind\nat all the words before it,\nthen it guesses one."),
    (("a cat", "my cat", "a dog", "animals"),
     "The cat on the sill\nhas seen the bird, and the bird\nhas seen the cat too."),
)  # fmt: skip
_REQUESTS: Final = (
    "Write a haiku about {about}.", "Write a haiku about {about}", "Write me a haiku about {about}.",
    "A haiku about {about}, please.", "Please write a haiku about {about}.", "haiku about {about}",
)  # fmt: skip
IN_HAIKUS: Final = ("You only respond in haikus.", "Always respond in haiku form", "Answer in haikus.")
_ABOUT: Final = ("Tell me about {about}.", "What do you think of {about}?", "Write about {about}.")


def make_haiku(rng: random.Random, in_haikus: bool = False) -> Turn:
    """A request and its haiku; where the system asks for haikus, the request need not."""
    abouts, haiku = rng.choice(HAIKUS)
    about = abouts[0] if rng.random() < 0.4 else rng.choice(abouts)
    return Turn(rng.choice(_ABOUT if in_haikus else _REQUESTS).format(about=about), haiku)
