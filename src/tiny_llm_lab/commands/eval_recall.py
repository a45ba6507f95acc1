"""`eval-recall`: how often an answer about notes in the prompt is right to the letter."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tiny_llm_lab.corpus.recall import RecallQuestion, recall_questions
from tiny_llm_lab.types import Completion, DoneEvent, Event, SamplingParams, UserError

from .chat import as_chat
from .cli_errors import log
from .options import (
    Loaded,
    add_kernel_arguments,
    add_model_arguments,
    add_prefill_step,
    load_from_args,
    model_name,
)

HELP = "Measure how many questions about held-out facts in the prompt are answered to the letter."
# An answer takes nine tokens and its end; a model that says more is wrong anyway.
ANSWER_TOKENS: Final = 16


@dataclass(frozen=True)
class WrongAnswer:
    """A question that was missed."""

    number: int
    expected: str
    said: str


@dataclass(frozen=True)
class RecallResult:
    """The measurement and all that decides it."""

    share: float
    num_right: int
    count: int
    seed: int
    context: int
    prefill_step: int
    model: str
    solution: str
    activation_bits: int | None
    wrong: tuple[WrongAnswer, ...]


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_kernel_arguments(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="which questions are drawn (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, default=100, help="questions (default: %(default)s)")
    parser.add_argument(
        "--context", type=int, default=512, help="tokens of a prompt, at most (default: %(default)s)"
    )
    add_prefill_step(parser)
    parser.add_argument("--batch-size", type=int, default=5, help="requests at a time (default: %(default)s)")
    parser.add_argument("--show-wrong", action="store_true", help="list the questions that were missed")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: Namespace) -> int:
    if args.count < 1:
        raise UserError("--count must be 1 or more")
    loaded = load_from_args(args)
    questions = _questions(loaded, args)
    completions = _answer(loaded, questions, args)
    result = judge(questions, completions, args)
    if args.json:
        print(json.dumps(asdict(result), indent=1))
        return 0
    print(
        f"recall {result.share:.3f} ({result.num_right} of {result.count}) · seed {result.seed} · "
        f"context {result.context} · prefill_step {result.prefill_step} · {result.model} · {result.solution}"
        + (f" · {result.activation_bits}-bit activations" if result.activation_bits else "")
    )
    for wrong in result.wrong if args.show_wrong else ():
        print(f"{wrong.number}: expected {wrong.expected!r}, said {wrong.said!r}")
    if result.wrong and not args.show_wrong:
        log("next: --show-wrong lists what was missed")
    return 0


def judge(questions: list[RecallQuestion], completions: list[Completion], args: Namespace) -> RecallResult:
    """Compare word for word; a request that failed is a wrong answer."""
    pairs = enumerate(zip(questions, completions, strict=True))
    wrong = tuple(
        WrongAnswer(number, question.answer, done.error or done.text)
        for number, (question, done) in pairs
        if done.error or done.text != question.answer
    )
    num_right = len(questions) - len(wrong)
    return RecallResult(
        share=num_right / len(questions),
        num_right=num_right,
        count=len(questions),
        seed=args.seed,
        context=args.context,
        prefill_step=args.prefill_step,
        model=model_name(args),
        solution=args.solution,
        activation_bits=args.activation_bits,
        wrong=wrong,
    )


def _questions(loaded: Loaded, args: Namespace) -> list[RecallQuestion]:
    limit = loaded.model.config.max_position_embeddings - ANSWER_TOKENS
    if args.context > limit:
        raise UserError(f"--context must be at most {limit} for this model: its answer takes room too")
    try:
        return recall_questions(args.seed, args.count, args.context, loaded.checkpoint.tokenizer.encode)
    except ValueError as error:
        raise UserError(str(error)) from None


def _answer(loaded: Loaded, questions: list[RecallQuestion], args: Namespace) -> list[Completion]:
    tokenizer, console = loaded.checkpoint.tokenizer, Console(stderr=True)
    columns = ("recall", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("recall", total=len(questions))

        def on_event(event: Event) -> None:
            if isinstance(event, DoneEvent):
                bar.advance(task)

        return loaded.solution.batch_generate(
            loaded.model,
            tokenizer,
            [as_chat(tokenizer, question.user) for question in questions],
            max_seq_len=args.context + ANSWER_TOKENS,
            batch_size=args.batch_size,
            prefill_step=args.prefill_step,
            sampling=SamplingParams(max_tokens=ANSWER_TOKENS),
            on_event=on_event,
        )
