"""The two sides of a comparison, and what differs between them in each step of one answer."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Final, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tiny_llm_lab.runtime.console.commands import CommandParser
from tiny_llm_lab.runtime.native.settings import VARIABLE
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.options.engine_options import add_engine_flags
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded, add_kernel_arguments, add_model_arguments
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.types import LogitsProcessor, Prompt, Tokenizer, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine


Logits = NDArray[np.float32]
_MOST_BYTES: Final = 2**30


@dataclass
class Recorded:
    """The logits [V] of each step of one answer in float32, and the prompt's tokens."""

    prompt: list[int] = field(default_factory=list)
    by_answer: dict[tuple[int, ...], Logits] = field(default_factory=dict)

    def steps(self) -> Iterator[tuple[int, Logits]]:
        """(best token, logits) of each step, along the answer that was given."""
        answer: tuple[int, ...] = ()
        # Rows of rejected drafts follow other answers, and are not met.
        while (logits := self.by_answer.get(answer)) is not None:
            token = int(logits.argmax())
            yield token, logits
            answer += (token,)


def side_args(flags: str, name: str) -> Namespace:
    """The flags of one side, of a model and its engine as for `serve`, and --kernels; UserError."""
    parser = CommandParser(prog=f"diverge {name}", add_help=False, allow_abbrev=False)
    add_model_arguments(parser)
    add_kernel_arguments(parser)
    add_engine_flags(parser)
    parser.add_argument("--kernels", choices=["auto", "cpp", "mlx", "off"])
    try:
        return parser.parse_args(shlex.split(flags))
    except UserError as error:  # the parser's; its last words name a help that does not exist
        raise UserError(f"{name}: {str(error).partition(': diverge')[0]}: it takes serve's flags") from None
    except ValueError as error:
        raise UserError(f"{name}: {error}: close the quotation") from None


@contextmanager
def running(args: Namespace) -> Iterator[tuple[Loaded, AnyEngine, ModelSettings]]:
    """The model and the engine of one side; --kernels holds for it alone."""
    before = os.environ.get(VARIABLE)
    if args.kernels:
        os.environ[VARIABLE] = args.kernels
    try:
        settings = model_settings(args)
        loaded, engine = load_and_build(settings)
        try:
            yield loaded, engine, settings
        finally:
            engine.release()
    finally:
        if args.kernels:
            os.environ.pop(VARIABLE)
            os.environ.update({VARIABLE: before} if before is not None else {})


def is_float32(loaded: Loaded, settings: ModelSettings) -> bool:
    """Whether a side computes and stores in float32 only."""
    is_wide = loaded.checkpoint.dtype == mx.float32 and loaded.activation_bits == 16
    return is_wide and settings.engine.kv_cache_dtype == "auto"


def require_room(num_prompts: int, max_tokens: int, vocab_size: int) -> None:
    """Raise UserError when A's logits would take more than 1 GiB."""
    if num_prompts * max_tokens * vocab_size * 4 > _MOST_BYTES:
        raise UserError(f"A's logits would take more than {_MOST_BYTES // 2**30} GiB: lower --max-tokens")


def record(engine: AnyEngine, prompts: Sequence[Prompt]) -> list[Recorded]:
    """The logits of A, which answers greedily."""
    return _read(engine, prompts, [None] * len(prompts))


def follow(engine: AnyEngine, prompts: Sequence[Prompt], recorded: Sequence[Recorded]) -> list[Recorded]:
    """The logits of B in its own schedule, while it is made to say what A said."""
    return _read(engine, prompts, [[token for token, _ in each.steps()] for each in recorded])


def _read(engine: AnyEngine, prompts: Sequence[Prompt], said: Sequence[list[int] | None]) -> list[Recorded]:
    """What the engine computes while it says, for each prompt, the tokens of `said`; None: its own."""
    results = [Recorded() for _ in prompts]

    def reader(to: Recorded, tokens: list[int] | None) -> LogitsProcessor:
        def process(logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
            to.prompt = to.prompt or list(prompt)
            # Drafts may look past the end, or follow other tokens: those rows are never accepted.
            if tokens is not None and (len(answer) >= len(tokens) or list(answer) != tokens[: len(answer)]):
                return logits
            to.by_answer[tuple(answer)] = np.array(logits.astype(mx.float32))
            if tokens is None:
                return logits
            return mx.where(mx.arange(logits.size) == tokens[len(answer)], mx.array(0.0), mx.array(-mx.inf))

        return process

    reading = zip(prompts, results, said, strict=True)
    prompts = [replace(prompt, processors=(reader(to, tokens),)) for prompt, to, tokens in reading]
    for done in engine.generate(prompts):
        if done.finish_reason == "error":
            raise UserError(f"prompt {done.prompt_idx}: {done.error}")
    return results


Verdict = Literal["same", "rounding", "bug"]

# Relative to the largest logit of a step. Measured on the default model, rounding is below a sixth of the
# first, and bfloat16 and int8 are below half of the second; a wrong mask is far above both.
FLOAT32_LIMIT: Final = 1e-4
COARSE_LIMIT: Final = 0.05
# Rounding changes from step to step, by up to a factor of 5 in the same runs.
JUMP: Final = 8


@dataclass(frozen=True)
class StepDifference:
    """One token of A's answer, with both sides given all tokens before it."""

    difference: float  # largest absolute difference of a logit; inf where a side is not finite
    size: float  # A's largest absolute logit
    margin: float  # A's best logit minus its second best
    token_a: int  # A's best token
    token_b: str | int  # B's best token; a server names it as text

    def limit(self, tolerance: float) -> float:
        """The most that rounding changes a logit of this step."""
        return tolerance * self.size


@dataclass(frozen=True)
class Judgement:
    """What the steps of one prompt show; `at` is the first step whose tokens differ, None without one."""

    verdict: Verdict
    reason: str
    at: int | None


def judge(
    steps: Sequence[StepDifference], is_different: Sequence[bool], tolerance: float, *, is_exact: bool = True
) -> Judgement:
    """The verdict on one prompt. `is_different` says for each step whether the best tokens differ.

    same: no logit differs in any step; without `is_exact` (a server): no token does, and no limit is passed.
    bug: a step differs by more than `tolerance` times its size, or the tokens part at a margin above
    2 * max(JUMP * largest difference before, limit / JUMP), at most 2 * limit. Two logits that approach each
    other by a difference each close twice that, so such a margin needs more than the steps before show.
    rounding: everything else.
    """
    at = next((i for i, differs in enumerate(is_different) if differs), None)
    for i, step in enumerate(steps):
        # The limit of a step that is not finite isn't either.
        if not isfinite(step.difference) or step.difference > step.limit(tolerance):
            return Judgement("bug", f"step {i} differs by {step.difference:.2g}: too much for rounding", at)
    if at is not None:
        before = max((step.difference for step in steps[:at]), default=0.0)
        limit = steps[at].limit(tolerance)
        explained = 2 * min(limit, max(JUMP * before, limit / JUMP))
        if steps[at].margin > explained:
            margin = f"margin {steps[at].margin:.2g} is above the {explained:.2g} that rounding explains"
            return Judgement("bug", margin, at)
        return Judgement("rounding", f"margin {steps[at].margin:.2g}, within {explained:.2g}", at)
    if not is_exact or all(step.difference == 0 for step in steps):
        return Judgement("same", "every bit" if is_exact else "every token", None)
    return Judgement("rounding", "the same tokens, other bits", None)


@dataclass(frozen=True)
class Compared:
    """One prompt: its steps, and what they show. In a grid `flags` are B's."""

    num_prompt_tokens: int
    steps: Sequence[StepDifference]
    judgement: Judgement
    number: int = 0  # of the prompt
    flags: str = ""


@dataclass(frozen=True)
class ServedStep:
    """What a server says of one token that it was given: logprobs of it, and of the likeliest by text."""

    logprob: float
    top: Mapping[str, float]


def compare(a: Recorded, b: Recorded, tolerance: float) -> Compared:
    """Two engines, all logits. Raises UserError when they do not read the same tokens."""
    steps: list[StepDifference] = []
    for number, (token, logits) in enumerate(a.steps()):
        answer = tuple(each.token_a for each in steps)
        other = b.by_answer.get(answer)
        if a.prompt != b.prompt or other is None or other.shape != logits.shape:
            raise UserError(f"B read other tokens than A in step {number}: give both the same --model")
        with np.errstate(invalid="ignore"):
            difference = float(np.abs(logits - other).max())
        is_finite = bool(np.isfinite(difference))
        steps.append(_step(token, logits, difference if is_finite else float("inf"), int(other.argmax())))
    is_different = [step.token_a != step.token_b for step in steps]
    return Compared(len(a.prompt), steps, judge(steps, is_different, tolerance))


def compare_served(
    a: Recorded, served: Sequence[ServedStep], tokenizer: Tokenizer, tolerance: float
) -> Compared:
    """An engine and a server: the difference is one of logprobs, over the tokens that both name."""
    steps, is_different = [], []
    for (token, logits), step in zip(a.steps(), served, strict=True):
        logprobs = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
        named = {tokenizer.decode([int(each)]): float(logprobs[each]) for each in np.argsort(logits)[-20:]}
        # Parts of characters have one text in common.
        texts = [text for text in named.keys() & step.top.keys() if "\ufffd" not in text]
        both = [abs(named[text] - step.top[text]) for text in texts]
        difference = max([abs(float(logprobs[token]) - step.logprob), *both])
        best = max(step.top, key=lambda text: step.top[text], default="")
        # The token itself may be as likely as the best: then the server could have drawn it, too.
        differs = bool(step.top) and step.top[best] > step.logprob
        text = best if differs else tokenizer.decode([token])
        steps.append(_step(token, logits, difference, text))
        is_different.append(differs)
    return Compared(len(a.prompt), steps, judge(steps, is_different, tolerance, is_exact=False))


def _step(token: int, logits: Logits, difference: float, token_b: str | int) -> StepDifference:
    second, best = np.partition(logits, -2)[-2:]
    return StepDifference(difference, float(np.abs(logits).max()), float(best - second), token, token_b)
