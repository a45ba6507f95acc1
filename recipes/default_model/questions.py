"""Questions about notes that only training asks: other wordings, and names that the notes do not hold."""

import random
from typing import Final

from tiny_llm_lab.measure.corpus.recall import Fact, Notes, Question, ask, make_fact
from tiny_llm_lab.measure.corpus.words import NAMES

from .strange_facts import invented_word

UNKNOWN_ANSWER: Final = "The notes do not say."


def ask_loosely(rng: random.Random, fact: Fact) -> Question:
    """A question about `fact` in a wording that the evaluation does not use."""
    forms = (
        f"Where does {fact.name} keep the {fact.thing}?",
        f"What does {fact.name} keep?",
        f"What is {fact.preposition} the {fact.place} of {fact.name}?",
        f"Where is the {fact.adjective} {fact.thing} of {fact.name}?",
        f"where does {fact.name} keep the {fact.adjective} {fact.thing}",
        f"Tell me what {fact.name} keeps.",
        f"{fact.name} keeps the",
    )
    return Question(rng.choice(forms), fact.sentence)


def ask_freely(rng: random.Random, notes: Notes, nameless_share: float = 0.5) -> Question:
    """A question as people type it. Where it gives no name, only one fact has what it gives."""
    fact = rng.choice(notes.facts)
    others = [other for other in notes.facts if other is not fact]
    named = [
        f"Where does {fact.name} keep the {fact.thing}?",
        f"What does {fact.name} keep?",
        f"Where is {fact.name}'s {fact.thing}?",
        f"What does {fact.name} keep {fact.preposition} the {fact.place}?",
    ]
    nameless = []
    if all(other.thing != fact.thing for other in others):
        nameless += [
            f"Where is the {fact.thing}?",
            f"Where is the {fact.adjective} {fact.thing}?",
            f"Who keeps the {fact.adjective} {fact.thing}?",
            f"Who has the {fact.thing}?",
        ]
    if all(other.place != fact.place for other in others):
        nameless += [f"What is {fact.preposition} the {fact.place}?"]
    is_nameless = bool(nameless) and rng.random() < nameless_share
    return Question(rng.choice(nameless if is_nameless else named), fact.sentence)


def ask_unanswerable(rng: random.Random, notes: Notes) -> Question:
    """A question about a name that the notes do not hold."""
    present = {fact.name for fact in notes.facts}
    absent = [name for name in NAMES if name not in present]
    stranger = make_fact(rng, rng.choice(absent or [invented_word(rng, 3).capitalize()]), held_out=False)
    return Question(ask(rng, stranger).question, UNKNOWN_ANSWER)
