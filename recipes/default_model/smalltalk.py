"""Small talk: greetings, what the model is, and the words of the course, each asked in several ways."""

import random
import tomllib
from pathlib import Path
from typing import Any, Final

from .chat_markup import Turn

_TERM_QUESTIONS: Final = (
    "What is {name}?", "what is {name}?", "What is {name}", "Tell me about {name}.", "Explain {name}.",
    "Can you explain {name}?", "Please explain {name}.", "What do you know about {name}?", "Define {name}.",
    "What does {name} mean?", "Explain {name} in one sentence.", "In short, what is {name}?",
    "How does {name} work?", "Why do we need {name}?", "What is {name} good for?",
)  # fmt: skip

UNKNOWN: Final = "I do not know. I am a very small model. Ask me about the course, or ask me for a story."

_HERE: Final = Path(__file__)
_TALK: Final = tomllib.loads(_HERE.with_suffix(".toml").read_text(encoding="utf-8"))["talk"]
_TERMS: Final = tomllib.loads(_HERE.with_name("glossary.toml").read_text(encoding="utf-8"))["term"]


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
