"""Small talk: greetings, what the model is, and the words of the course, each asked in several ways."""

import random
from typing import Any, Final

from .chat_markup import Turn
from .texts import texts

_TEXTS: Final = texts("smalltalk")
_TERM_QUESTIONS: Final = _TEXTS["term_questions"]

UNKNOWN: Final = "I do not know. I am a very small model. Ask me about the course, or ask me for a story."

_TALK: Final = _TEXTS["talk"]
_TERMS: Final = texts("glossary")["term"]


def make_small_talk(rng: random.Random) -> Turn:
    """One question with its answer; three in four are about a term of the course."""
    if rng.random() < 0.7:
        return _about(rng, rng.choice(_TERMS))
    talk = rng.choice(_TALK)
    return Turn(rng.choice(talk["says"]), rng.choice(talk["answers"]))


def make_greeting(rng: random.Random) -> Turn:
    """A greeting, and one back."""
    return Turn(rng.choice(_TALK[0]["says"]), rng.choice(_TALK[0]["answers"]))


def _about(rng: random.Random, term: dict[str, Any]) -> Turn:
    # Half of all questions take the two plainest forms: they are what people type.
    form = rng.choice(_TERM_QUESTIONS[:2]) if rng.random() < 0.4 else rng.choice(_TERM_QUESTIONS)
    return Turn(form.format(name=rng.choice(term["names"])), term["meaning"])
