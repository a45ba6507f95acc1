"""Measures recall with PyTorch: `python -m recipes.default_model.evaluate --run DIR --seed N`."""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tiny_llm_lab.measure.corpus.recall import (
    TURN_END,
    Notes,
    RecallQuestion,
    recall_questions,
    render_prompt,
)
from tiny_llm_lab.measure.corpus.words import NAMES

from .data import Row
from .encoding import CorpusEncoder
from .export import load_trained
from .forms import SURE, make_chat
from .fresh_words import make_fresh_fact
from .model import Qwen3
from .questions import ask_freely

# An answer takes 9 tokens and its end, or some more if its words are in no list. A model that says more
# than this is wrong anyway.
ANSWER_TOKENS: Final = 48


@dataclass(frozen=True)
class RecallResult:
    """How many answers were right to the letter."""

    context: int
    questions: int
    right: int
    misses: tuple[tuple[str, str], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure recall of a training folder.")
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of the training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--fresh", action="store_true", help="short notes of words that training never saw")
    parser.add_argument(
        "--forms", action="store_true", help="JSON and calls, of words that training never saw"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model = load_trained(arguments.run)
    tokenizer = Tokenizer.from_file(str(arguments.run / "tokenizer.json"))
    if arguments.fresh:
        print(json.dumps(asdict(measure_fresh(model, tokenizer, arguments.seed, arguments.questions))))
        return
    if arguments.forms:
        print(json.dumps(asdict(measure_forms(model, tokenizer, arguments.seed, arguments.questions))))
        return
    for context in arguments.contexts:
        result = measure_recall(model, tokenizer, arguments.seed, context, arguments.questions)
        print(json.dumps(asdict(result)))


def measure_recall(model: Qwen3, tokenizer: Tokenizer, seed: int, context: int, count: int) -> RecallResult:
    """Greedy answers in float32 to questions about held-out facts."""
    questions = recall_questions(seed, count, context, lambda text: tokenizer.encode(text).ids)
    return _measure(model, tokenizer, questions, context)


def measure_fresh(model: Qwen3, tokenizer: Tokenizer, seed: int, count: int) -> RecallResult:
    """The same for notes of one to four facts, most words of which training never saw, asked freely."""
    rng, questions = random.Random(f"fresh {seed}"), []
    for _ in range(count):
        names = rng.sample(NAMES, rng.randint(1, 4))
        facts = tuple(make_fresh_fact(rng, name, held_out=True) for name in names)
        asked = ask_freely(rng, Notes("", facts))
        text = " ".join(fact.sentence for fact in facts)
        questions.append(RecallQuestion(f"{text} {asked.question}", asked.answer, 0, len(facts)))
    return _measure(model, tokenizer, questions, 0)


def measure_forms(model: Qwen3, tokenizer: Tokenizer, seed: int, count: int) -> RecallResult:
    """Answers that have a form: all of whose tokens the model chooses, but for those that the form gives."""
    rng, encoder = random.Random(f"forms {seed}"), CorpusEncoder(tokenizer)
    answers: list[tuple[str, str]] = []
    while len(answers) < count:
        row = Row(encoder)
        for message in make_chat(rng, held_out=True):
            start = len(row.tokens)
            row.say(message)
            if message.role != "assistant":
                continue
            tokens = row.tokens[start:]
            choices = _choices(model, row.tokens)[start - 1 : -1].tolist()
            counted = [weight >= SURE for weight in row.weights[start:]]
            said = [
                mine if counts else given
                for mine, given, counts in zip(choices, tokens, counted, strict=True)
            ]
            answers.append((tokenizer.decode(tokens), tokenizer.decode(said)))
    misses = tuple((want, said) for want, said in answers if want != said)
    return RecallResult(0, len(answers), len(answers) - len(misses), misses[:20])


def _measure(
    model: Qwen3, tokenizer: Tokenizer, questions: Sequence[RecallQuestion], context: int
) -> RecallResult:
    answers = [_answer(model, tokenizer, question) for question in questions]
    pairs = zip(questions, answers, strict=True)
    misses = tuple((question.answer, answer) for question, answer in pairs if question.answer != answer)
    return RecallResult(context, len(questions), len(questions) - len(misses), misses[:5])


def _answer(model: Qwen3, tokenizer: Tokenizer, question: RecallQuestion) -> str:
    """What greedy decoding says. One pass with the right answer behind the prompt shows most of it:

    while the model agrees with the answer, its greedy choice is the same as in decoding token by token.
    """
    prompt = tokenizer.encode(render_prompt(question.user)).ids
    expected = tokenizer.encode(question.answer + TURN_END).ids
    choices = _choices(model, [*prompt, *expected])[len(prompt) - 1 : -1].tolist()
    if choices == expected:
        return question.answer
    return greedy(model, tokenizer, prompt, ANSWER_TOKENS)


def greedy(model: Qwen3, tokenizer: Tokenizer, prompt: Sequence[int], limit: int) -> str:
    """Plain greedy decoding without a cache: slow, but it shares nothing that could be wrong."""
    tokens = list(prompt)
    ends = {tokenizer.token_to_id(TURN_END), 0}
    while len(tokens) < len(prompt) + limit:
        token = int(_choices(model, tokens)[-1])
        if token in ends:
            break
        tokens.append(token)
    answer: str = tokenizer.decode(tokens[len(prompt) :])
    return answer


def _choices(model: Qwen3, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        logits: Tensor = model(ids, torch.arange(ids.shape[1])[None])
    return logits[0].argmax(-1)


if __name__ == "__main__":
    main()
