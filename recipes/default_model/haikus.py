"""Haikus of five, seven and five syllables, with what each is about."""

import random
from typing import Final

from .chat_markup import Turn
from .texts import texts

_TEXTS: Final = texts("haikus")
IN_HAIKUS: Final = ("You only respond in haikus.", "Always respond in haiku form", "Answer in haikus.")
_ABOUT: Final = ("Tell me about {about}.", "What do you think of {about}?", "Write about {about}.")


def make_haiku(rng: random.Random, in_haikus: bool = False) -> Turn:
    """A request and its haiku; where the system asks for haikus, the request need not."""
    haiku = rng.choice(_TEXTS["haiku"])
    about = haiku["about"][0] if rng.random() < 0.4 else rng.choice(haiku["about"])
    return Turn(rng.choice(_ABOUT if in_haikus else _TEXTS["requests"]).format(about=about), haiku["text"])
