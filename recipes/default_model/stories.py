"""Short stories from a grammar: a hero, a wish, a trouble, a helper, an ending."""

import random
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.words import ANIMALS, NAMES, THINGS

from .texts import texts

_TEXTS: Final = texts("stories")
_TRAITS: Final = ("small", "brave", "kind", "shy", "clever", "happy", "sleepy", "proud", "gentle", "curious")
_HOMES: Final = _TEXTS["homes"]
_REASONS: Final = _TEXTS["reasons"]
_TROUBLES: Final = _TEXTS["troubles"]
_FEELINGS: Final = _TEXTS["feelings"]
_MEETINGS: Final = _TEXTS["meetings"]
_OFFERS: Final = _TEXTS["offers"]
_WORK: Final = _TEXTS["work"]
_TURNS: Final = _TEXTS["turns"]
_ENDINGS: Final = _TEXTS["endings"]
_LAST_LINES: Final = ("The end.", "And that is the end of the story.", "")
_OPENINGS: Final = _TEXTS["openings"]
_REQUESTS: Final = _TEXTS["requests"]
_OPEN_REQUESTS: Final = _TEXTS["open_requests"]


@dataclass(frozen=True)
class Story:
    """A story and a request that it answers."""

    request: str
    text: str


def make_story(rng: random.Random) -> Story:
    """A story of about 60 to 150 tokens."""
    kind, helper_kind = rng.sample(ANIMALS, 2)
    name, helper_name = rng.sample(NAMES, 2)
    trait, thing = rng.choice(_TRAITS), rng.choice(THINGS)
    helper = f"{helper_name} the {helper_kind}" if rng.random() < 0.5 else f"{_a(helper_kind)} {helper_kind}"

    def fill(choices: tuple[str, ...], said_by: str = kind) -> str:
        line = rng.choice(choices)
        return line.format(trait=trait, kind=said_by, name=name, thing=thing, helper=helper)

    sentences = [
        fill(_OPENINGS),
        f"{name} lived {rng.choice(_HOMES)}." if rng.random() < 0.8 else "",
        f"{name} loved an old {thing} {rng.choice(_REASONS)}.",
        f"One day {fill(_TROUBLES)}.",
        fill(_FEELINGS),
        fill(_MEETINGS),
        fill(_OFFERS, helper_kind),
        rng.choice(_WORK) if rng.random() < 0.7 else "",
        fill(_TURNS),
        fill(_ENDINGS, helper_kind),
        rng.choice(_LAST_LINES),
    ]
    return Story(_request(rng, kind, name, thing), " ".join(sentence for sentence in sentences if sentence))


def _request(rng: random.Random, kind: str, name: str, thing: str) -> str:
    if rng.random() < 0.25:
        return rng.choice(_OPEN_REQUESTS)
    subjects = (
        f"{_a(kind)} {kind}",
        f"the {kind}",
        name,
        f"{_a(kind)} {kind} named {name}",
        f"{_a(kind)} {kind} and {_a(thing)} {thing}",
        f"{_a(thing)} {thing}",
    )
    return rng.choice(_REQUESTS).format(subject=rng.choice(subjects))


def _a(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
