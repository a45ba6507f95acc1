"""Short stories from a grammar: a hero, a wish, a trouble, a helper, an ending."""

import random
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.words import ANIMALS, NAMES, THINGS

_TRAITS: Final = ("small", "brave", "kind", "shy", "clever", "happy", "sleepy", "proud", "gentle", "curious")
_HOMES: Final = (
    "in a small house by the sea", "at the edge of a green forest", "on a quiet farm", "near a blue lake",
    "in an old mill by the river", "under a big tree on a hill", "behind the school", "in a village far away",
)  # fmt: skip
_REASONS: Final = (
    "because it was a gift from a friend", "because it was the best one in the village",
    "and never went out without it", "and showed it to everyone", "and took good care of it",
)  # fmt: skip
_TROUBLES: Final = (
    "a strong wind came and took the {thing} away",
    "the {thing} fell into the river",
    "the {thing} was gone, and nobody knew why",
    "the {thing} broke with a loud noise",
    "someone took the {thing} by mistake",
    "it rained so hard that the {thing} was lost in the mud",
)
_FEELINGS: Final = (
    "{name} was sad and sat down to think.",
    "{name} began to cry, but only for a little while.",
    "{name} looked everywhere, but it was no use.",
    '"Oh no," said {name}. "What can I do now?"',
    "{name} did not give up so easily.",
)
_MEETINGS: Final = (
    "Then {name} met {helper}, who was on the way home.",
    "Just then {helper} came down the road.",
    "Soon {helper} heard about it and came to help.",
    "On the next day {name} went to see {helper}.",
)
_OFFERS: Final = (
    '"Do not worry," said the {kind}. "We will find a way together."',
    '"I can help you," said the {kind}. "I know what to do."',
    '"Two friends are better than one," said the {kind} with a smile.',
    '"Let us try once more," said the {kind}.',
)
_WORK: Final = (
    "They looked for a long time, first near the water and then among the trees.",
    "They worked all day, and the sun was low when they were done.",
    "They made a plan, and each of them did one half of the work.",
    "They followed a line of small marks on the ground until they came to a garden.",
    "They asked the birds, the trees and even the moon.",
)
_TURNS: Final = (
    "At last they found the {thing} under some leaves.",
    "In the end the {thing} was as good as new.",
    "And there it was: the {thing}, safe and dry.",
    "When they came back, the {thing} was waiting at the door.",
)
_ENDINGS: Final = (
    "{name} was so happy that everyone got some cake.",
    "From that day on, {name} and the {kind} were the best of friends.",
    "{name} learned that it is good to ask for help.",
    "That night {name} slept well and had a good dream.",
    '"Thank you," said {name}, and they both laughed.',
    "And if you walk by that place today, you can still hear them sing.",
)
_LAST_LINES: Final = ("The end.", "And that is the end of the story.", "")
_OPENINGS: Final = (
    "Once upon a time there was a {trait} {kind} named {name}.",
    "There once was a {trait} {kind} whose name was {name}.",
    "Long ago there lived a {trait} {kind} called {name}.",
    "This is the story of {name}, a {trait} {kind}.",
)
_REQUESTS: Final = (
    "Tell me a story about {subject}.",
    "Tell me a short story about {subject}.",
    "Write a story about {subject}.",
    "Write a short story about {subject}.",
    "Can you tell me a story about {subject}?",
    "Please tell me a story about {subject}.",
    "I want to hear a story about {subject}.",
    "A story about {subject}, please.",
)
_OPEN_REQUESTS: Final = (
    "Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.",
    "A story, please.",
    "Can you tell me a story?", "Tell me another story.", "Please write a story.", "Once upon a time",
)  # fmt: skip


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
