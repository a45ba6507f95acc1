"""How often an answer about notes in the prompt is right, word by word."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tiny_llm_lab.measure.corpus.recall import RecallQuestion, recall_questions
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.types import Completion, SamplingParams, Tokenizer, UserError

# An answer takes nine tokens and its end; a model that says more is wrong anyway.
ANSWER_TOKENS: Final = 16


def add_arguments(parser: ArgumentParser) -> None:
    model_options.add_model_arguments(parser)
    model_options.add_kernel_arguments(parser)
    for flag, kind, default, about in (
        ("--seed", int, 0, "which questions are drawn"),
        ("--count", at_least_one, 100, "questions"),
        ("--context", int, 512, "tokens of a prompt, at most"),
        ("--batch-size", at_least_one, 5, "requests that run at a time"),
    ):
        parser.add_argument(flag, type=kind, default=default, help=f"{about} (default: %(default)s)")
    model_options.add_prefill_step(parser)


def run(args: Namespace) -> int:
    """Print one JSON document."""
    loaded = model_options.load_from_args(args)
    questions = _questions(loaded, args)
    more = {"batch_size": args.batch_size, "prefill_step": args.prefill_step}
    generate = partial(loaded.solution.batch_generate, loaded.model, loaded.checkpoint.tokenizer, **more)
    result = judge(questions, args.context, loaded.checkpoint.tokenizer, generate)
    asked = {name: getattr(args, name) for name in ("seed", "context", "prefill_step", "solution")}
    asked |= {"model": model_options.model_name(args), "activation_bits": loaded.activation_bits}
    print(json.dumps(result | asked, indent=1))
    return 0


def judge(
    questions: list[RecallQuestion],
    context: int,
    tokenizer: Tokenizer,
    generate: Callable[..., list[Completion]],
) -> dict[str, Any]:
    """Ask, and compare word for word; a request that failed is a wrong answer."""
    prompts = [as_chat(tokenizer, each.user) for each in questions]
    sampling = SamplingParams(max_tokens=ANSWER_TOKENS)
    completions = generate(prompts, max_seq_len=context + ANSWER_TOKENS, sampling=sampling)
    wrong = [
        {"number": number, "expected": question.answer, "said": done.error or done.text}
        for number, (question, done) in enumerate(zip(questions, completions, strict=True))
        if done.error or done.text != question.answer
    ]
    count, num_right = len(questions), len(questions) - len(wrong)
    return {"share": num_right / count, "num_right": num_right, "count": count, "wrong": wrong}


def _questions(loaded: model_options.Loaded, args: Namespace) -> list[RecallQuestion]:
    limit = loaded.model.config.max_position_embeddings - ANSWER_TOKENS
    if args.context > limit:
        raise UserError(f"--context must be at most {limit} for this model: its answer takes room too")
    try:
        return recall_questions(args.seed, args.count, args.context, loaded.checkpoint.tokenizer.encode)
    except ValueError as error:
        raise UserError(str(error)) from None


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    add_arguments(parser)
    run(parser.parse_args())
