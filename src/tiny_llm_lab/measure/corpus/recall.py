"""The recall evaluation: prompts of a given length whose answer is somewhere in them."""

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.words import ADJECTIVES, NAMES, PLACES, SENTENCES, SLOTS, THINGS

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"


def render_prompt(user: str) -> str:
    """The prompt that the chat template makes of a single user message."""
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n"


def make_filler(rng: random.Random) -> str:
    """One filler sentence; it names no one."""
    return re.sub(r"{(\w+)}", lambda slot: rng.choice(SLOTS[slot[1]]), rng.choice(SENTENCES))


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


# Tokens of the markup, the introduction and the question: found by the check below, so only an estimate.
_ESTIMATED_OVERHEAD: Final = 28


@dataclass(frozen=True)
class RecallQuestion:
    """One prompt of the evaluation: `user` is the whole user message, `answer` the text expected for it."""

    user: str
    answer: str
    context_tokens: int
    facts: int


def recall_questions(
    seed: int, count: int, context_tokens: int, encode: Callable[[str], list[int]]
) -> list[RecallQuestion]:
    """`count` questions whose rendered prompts take close to `context_tokens` tokens, never more.

    Every fact in them is a combination held out of training. The fact asked for is drawn uniformly, so
    it may be anywhere in the prompt. `encode` must turn the markup of a rendered prompt into its
    special tokens, as the tokenizers of transformers and mlx-lm do.
    """
    sizes: dict[str, int] = {}

    def size(text: str) -> int:
        if text not in sizes:
            sizes[text] = len(encode(text))
        return sizes[text]

    return [
        _one_question(random.Random(f"recall {seed} {number}"), context_tokens, encode, size)
        for number in range(count)
    ]


def _one_question(
    rng: random.Random, context_tokens: int, encode: Callable[[str], list[int]], size: Callable[[str], int]
) -> RecallQuestion:
    overhead, separator = _ESTIMATED_OVERHEAD, rng.choice(SEPARATORS)
    while overhead < context_tokens:
        notes = make_notes(rng, context_tokens - overhead, size, held_out=True, separator=separator)
        question = ask(rng, rng.choice(notes.facts))
        user = first_message(rng, notes, question)
        tokens = len(encode(render_prompt(user)))
        if tokens <= context_tokens:
            return RecallQuestion(user, question.answer, tokens, len(notes.facts))
        overhead += tokens - context_tokens
    raise ValueError(
        f"a prompt of {context_tokens} tokens is too short for a fact and a question: choose 64 or more"
    )
