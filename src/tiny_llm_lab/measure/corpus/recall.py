"""The recall evaluation: prompts of a given length whose answer is somewhere in them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.chatml import render_prompt
from tiny_llm_lab.measure.corpus.notes import SEPARATORS, ask, first_message, make_notes

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
