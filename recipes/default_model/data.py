"""Training rows: tokens, what each of them counts in the loss, and positions."""

import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from tiny_llm_lab.measure.corpus.recall import Notes, Question, ask, first_message, make_notes

from .chat_markup import Turn
from .encoding import CorpusEncoder
from .forms import Message, make_chat
from .fresh_words import make_fresh_fact
from .questions import ask_freely, ask_loosely, ask_unanswerable
from .smalltalk import make_small_talk
from .stories import make_story
from .strange_facts import make_strange_fact

# What a token counts in the loss. RETRIEVED: an answer's token that its question does not hold, the only
# ones that need recall. COPIED: a question's token, half of which can be guessed from the notes.
RETRIEVED: Final = 4.0
ANSWER: Final = 1.0
COPIED: Final = 0.3
REPEATED: Final = 0.75
STORY: Final = 0.5

NOTED: Final = "Noted."  # what the model says to notes without a question

MAX_POSITION: Final = 4096
SYSTEMS: Final = (
    "You are a helpful assistant.", "You are a helpful assistant", "Answer in short.", "Be kind.",
)  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of rows (the rest are stories and small talk)."""

    repeats: float
    notes: float
    unanswerable: float = 0.0
    strange_facts: float = 0.1
    loose_questions: float = 0.15
    fresh_facts: float = 0.0  # share of notes whose facts may all have words of no list, asked freely
    nameless: float = 0.5  # share of those questions that give no name
    position_gaps: float = 0.0
    forms: float = 0.0  # share of rows whose answers have a form; the other shares are of the rest


@dataclass(frozen=True)
class Batch:
    """Rows of one length; `targets` and `weights` belong to the token after each position."""

    tokens: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


class Row:
    """A row under construction: its `tokens`, and their `weights` as targets."""

    def __init__(self, encoder: CorpusEncoder) -> None:
        self._encoder = encoder
        self.tokens: list[int] = []
        self.weights: list[float] = []

    def add(self, tokens: list[int], weight: float) -> None:
        self.tokens += tokens
        self.weights += [weight] * len(tokens)

    def message(self, role: str, text: str, weight: float = 0.0) -> None:
        self._begin(role)
        self.add(self._encoder.encode(text), weight)
        self._end(weight > 0)

    def _begin(self, role: str) -> None:
        self.add([self._encoder.turn_start, *self._encoder.encode(role + "\n")], 0.0)

    def _end(self, counts: bool) -> None:
        self.add([self._encoder.turn_end], ANSWER if counts else 0.0)
        self.add(self._encoder.encode("\n"), 0.0)

    def answer(self, question: Question) -> None:
        """The assistant's answer, with more weight on what the question did not already say."""
        asked = set(self._encoder.encode(" " + question.question))
        start = len(self.tokens)
        self.message("assistant", question.answer, ANSWER)
        for index in range(start, len(self.tokens)):
            if self.weights[index] and self.tokens[index] not in asked:
                self.weights[index] = RETRIEVED

    def say(self, message: Message) -> None:
        """A message whose parts have weights; a token of two parts has that of its last character."""
        ends = [*accumulate(len(part.text) for part in message.parts)]
        self._begin(message.role)
        place = 0
        for token in self._encoder.encode(message.text):
            place += self._encoder.length(token)
            self.add([token], message.parts[bisect_left(ends, place)].weight)
        self._end(message.role == "assistant")

    def talk(self, turn: Turn, weight: float) -> None:
        self.message("user", turn.user)
        self.message("assistant", turn.assistant, weight)


def make_batch(seed: str, rows: int, length: int, mix: Mix, encoder: CorpusEncoder) -> Batch:
    """The batch of a seed: the same text, weights and positions each time."""
    rng = random.Random(seed)
    tokens, weights, positions = [], [], []
    for _ in range(rows):
        row = _make_row(rng, length + 1, mix, encoder)
        padding = length + 1 - len(row.tokens)
        tokens.append(row.tokens[: length + 1] + [encoder.end_of_text] * padding)
        weights.append(row.weights[: length + 1] + [0.0] * padding)
        positions.append(make_positions(rng, length, rng.random() < mix.position_gaps))
    ids = torch.tensor(tokens)
    return Batch(ids[:, :-1], torch.tensor(positions), ids[:, 1:], torch.tensor(weights)[:, 1:])


def make_positions(rng: random.Random, length: int, gaps: bool) -> list[int]:
    """0, 1, 2, ... with a few jumps if `gaps`: a short row then shows the distances of a long one."""
    if not gaps:
        return list(range(length))
    jumps = sorted(rng.randrange(1, length) for _ in range(rng.randint(1, 8)))
    spare = rng.randrange(MAX_POSITION - length)
    cuts = sorted(rng.randint(0, spare) for _ in jumps)
    steps = dict(zip(jumps, cuts, strict=True))
    shift, positions = 0, []
    for index in range(length):
        shift = steps.get(index, shift)
        positions.append(index + shift)
    return positions


def _make_row(rng: random.Random, length: int, mix: Mix, encoder: CorpusEncoder) -> Row:
    row = Row(encoder)
    if mix.forms and rng.random() < mix.forms:
        _fill_with_forms(rng, row, length, encoder)
        return row
    kind = rng.random()
    if kind < mix.repeats:
        _fill_with_repeats(rng, row, length, encoder.recalled if rng.random() < 0.75 else encoder.plain)
    elif kind < mix.repeats + mix.notes:
        _fill_with_notes(rng, row, length, mix, encoder)
    elif rng.random() < 0.25:
        while len(row.tokens) < length:
            row.add([*encoder.encode(make_story(rng).text), encoder.end_of_text], STORY)
    else:
        _maybe_system(rng, row)
        while len(row.tokens) < length:
            _small_turn(rng, row)
    return row


def _fill_with_forms(rng: random.Random, row: Row, length: int, encoder: CorpusEncoder) -> None:
    while len(row.tokens) < length:
        for message in make_chat(rng):
            row.say(message)
        row.add([encoder.end_of_text], 0.0)


def _fill_with_repeats(rng: random.Random, row: Row, length: int, pool: list[int]) -> None:
    """Random tokens said again, in order or piece by piece: recall with nothing else to learn.

    Mostly the words that notes are made of, so that their tokens are known sooner.
    """
    if rng.random() < 0.5:
        first = [rng.choice(pool) for _ in range(rng.randint(8, max(9, length // 2)))]
        row.add(first, 0.0)
        while len(row.tokens) < length:
            row.add(first, REPEATED)
        return
    pieces = []
    while len(row.tokens) < length // 2:
        pieces.append([rng.choice(pool) for _ in range(rng.randint(3, 12))])
        row.add(pieces[-1], 0.0)
    while len(row.tokens) < length:
        piece = rng.choice(pieces)
        # Which piece comes next is random, so its first token does not count.
        row.add(piece[:1], 0.0)
        row.add(piece[1:], REPEATED)


def _fill_with_notes(rng: random.Random, row: Row, length: int, mix: Mix, encoder: CorpusEncoder) -> None:
    _maybe_system(rng, row)
    # A quarter of the rows has a handful of facts, as typed by hand; the rest fill their share of the row.
    short = rng.random() < 0.25
    budget = rng.randint(9, 60) if short else int(length * rng.uniform(0.2, 0.85))
    # Without fresh facts nothing is drawn, so that the rows of earlier stages stay what they were.
    is_fresh = mix.fresh_facts > 0 and rng.random() < mix.fresh_facts
    notes = make_notes(
        rng,
        min(budget, max(9, length - 70)),
        encoder.count,
        filler_share=rng.uniform(0.0, 0.6),
        strange_fact=make_fresh_fact if is_fresh else make_strange_fact,
        strange_share=0.8 if is_fresh else mix.strange_facts,
    )
    opened = False
    while len(row.tokens) < length:
        if opened and rng.random() < 0.04:
            _small_turn(rng, row)
            continue
        question, weight = _question(rng, notes, mix, is_fresh)
        if is_fresh and not opened and rng.random() < 0.15:
            row.talk(Turn(notes.text, NOTED), ANSWER)
            opened = True
        if opened:
            row.message("user", question.question, weight)
        else:
            row.message("user", first_message(rng, notes, question))
        row.answer(question)
        opened = True


def _question(rng: random.Random, notes: Notes, mix: Mix, is_fresh: bool) -> tuple[Question, float]:
    if rng.random() < mix.unanswerable:
        return ask_unanswerable(rng, notes), 0.0
    if is_fresh and rng.random() < 0.8:
        return ask_freely(rng, notes, mix.nameless), 0.0
    fact = rng.choice(notes.facts)
    if rng.random() < mix.loose_questions:
        return ask_loosely(rng, fact), 0.0
    return ask(rng, fact), COPIED


def _maybe_system(rng: random.Random, row: Row) -> None:
    if rng.random() < 0.1:
        row.message("system", rng.choice(SYSTEMS))


def _small_turn(rng: random.Random, row: Row) -> None:
    if rng.random() < 0.3:
        story = make_story(rng)
        row.talk(Turn(story.request, story.text), STORY)
    else:
        row.talk(make_small_talk(rng), ANSWER)
