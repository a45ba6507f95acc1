"""Notes: facts scattered among filler sentences, then questions whose answer restates one whole fact."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.filler import make_filler
from tiny_llm_lab.measure.corpus.words import ADJECTIVES, NAMES, PLACES, THINGS

HELD_OUT_ONE_IN: Final = 10

INTRODUCTIONS: Final = ("Notes:", "Here are my notes.", "Read these notes.", "My notes:")
SEPARATORS: Final = (" ", "\n")
QUESTION_LEADS: Final = (" ", "\n", "\n\n", "\nQuestion: ")


@dataclass(frozen=True)
class Fact:
    """Who keeps what where."""

    name: str
    adjective: str
    thing: str
    preposition: str
    place: str

    @property
    def sentence(self) -> str:
        return f"{self.name} keeps the {self.adjective} {self.thing} {self.preposition} the {self.place}."

    @property
    def where_question(self) -> str:
        return f"Where does {self.name} keep the {self.adjective} {self.thing}?"

    @property
    def what_question(self) -> str:
        return f"What does {self.name} keep {self.preposition} the {self.place}?"


@dataclass(frozen=True)
class Notes:
    """A prompt's notes: the text, and its facts in order."""

    text: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Question:
    """A question about notes with the answer expected word for word."""

    question: str
    answer: str


def is_held_out(fact: Fact) -> bool:
    """Whether this combination is kept out of training: a rule, so no list has to be stored."""
    key = f"{fact.name}|{fact.adjective}|{fact.thing}|{fact.place}"
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def make_fact(rng: random.Random, name: str, held_out: bool) -> Fact:
    """A fact about `name` from the word lists, on the wanted side of the held-out rule."""
    while True:
        preposition, place = rng.choice(PLACES)
        fact = Fact(name, rng.choice(ADJECTIVES), rng.choice(THINGS), preposition, place)
        if is_held_out(fact) == held_out:
            return fact


def make_notes(
    rng: random.Random,
    budget: int,
    count: Callable[[str], int],
    *,
    held_out: bool = False,
    filler_share: float = 0.4,
    strange_fact: Callable[[random.Random, str], Fact] | None = None,
    strange_share: float = 0.0,
    separator: str | None = None,
) -> Notes:
    """Notes of at most about `budget` tokens by `count`; each name is in at most one fact.

    There is always at least one fact, however small the budget. `strange_fact` makes `strange_share` of the
    facts. `separator` goes between sentences; it is drawn when not given, and then a line break is counted
    as the space it might have been.
    """
    names = rng.sample(NAMES, len(NAMES))
    sentences: list[str] = []
    facts: dict[str, Fact] = {}
    while True:
        fact: Fact | None = None
        if names and rng.random() >= filler_share:
            name = names.pop()
            is_strange = rng.random() < strange_share
            fact = strange_fact(rng, name) if strange_fact and is_strange else make_fact(rng, name, held_out)
            if fact.name in facts:
                continue
        sentence = fact.sentence if fact else make_filler(rng)
        budget -= count((separator or " ") + sentence)
        if budget < 0 and facts:
            break
        sentences.append(sentence)
        if fact:
            facts[fact.name] = fact
    return Notes(_lay_out(rng, sentences, separator or rng.choice(SEPARATORS)), tuple(facts.values()))


def ask(rng: random.Random, fact: Fact) -> Question:
    """One of the two questions that the evaluation asks about a fact."""
    question = fact.where_question if rng.random() < 0.5 else fact.what_question
    return Question(question, fact.sentence)


def first_message(rng: random.Random, notes: Notes, question: Question) -> str:
    """The user message that holds the notes and then the first question."""
    return notes.text + rng.choice(QUESTION_LEADS) + question.question


def _lay_out(rng: random.Random, sentences: list[str], separator: str) -> str:
    body = separator.join(sentences)
    return body if rng.random() < 0.4 else rng.choice(INTRODUCTIONS) + rng.choice(SEPARATORS) + body
