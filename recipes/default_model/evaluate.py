"""Measures recall with PyTorch: `python -m recipes.default_model.evaluate --run DIR --seed N`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tiny_llm_lab.measure.corpus.chatml import TURN_END, render_prompt
from tiny_llm_lab.measure.corpus.recall import RecallQuestion, recall_questions

from .export import load_trained
from .model import Qwen3

# An answer takes 9 tokens and its end; a model that says more than this is wrong anyway.
ANSWER_TOKENS: Final = 16


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
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model = load_trained(arguments.run)
    tokenizer = Tokenizer.from_file(str(arguments.run / "tokenizer.json"))
    for context in arguments.contexts:
        result = measure_recall(model, tokenizer, arguments.seed, context, arguments.questions)
        print(json.dumps(asdict(result)))


def measure_recall(model: Qwen3, tokenizer: Tokenizer, seed: int, context: int, count: int) -> RecallResult:
    """Greedy answers in float32 to questions about held-out facts."""
    questions = recall_questions(seed, count, context, lambda text: tokenizer.encode(text).ids)
    answers = [_answer(model, tokenizer, question) for question in questions]
    pairs = zip(questions, answers, strict=True)
    misses = tuple((question.answer, answer) for question, answer in pairs if question.answer != answer)
    return RecallResult(context, count, count - len(misses), misses[:5])


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
