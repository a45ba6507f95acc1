"""What differs between two sides in each step of one answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tiny_llm_lab.measure.diverge.side import Logits, Recorded
from tiny_llm_lab.measure.diverge.verdict import Judgement, StepDifference, judge
from tiny_llm_lab.types import Tokenizer, UserError


@dataclass(frozen=True)
class Compared:
    """One prompt: its steps, and what they show."""

    num_prompt_tokens: int
    steps: Sequence[StepDifference]
    judgement: Judgement


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
    for (token, logits), said in zip(a.steps(), served, strict=True):
        logprobs = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
        named = {tokenizer.decode([int(each)]): float(logprobs[each]) for each in np.argsort(logits)[-20:]}
        both = [abs(named[text] - said.top[text]) for text in named.keys() & said.top.keys()]
        difference = max([abs(float(logprobs[token]) - said.logprob), *both])
        best = max(said.top, key=lambda text: said.top[text], default="")
        # The token itself may be as likely as the best: then the server could have drawn it, too.
        differs = bool(said.top) and said.top[best] > said.logprob
        text = best if differs else tokenizer.decode([token])
        steps.append(_step(token, logits, difference, text))
        is_different.append(differs)
    return Compared(len(a.prompt), steps, judge(steps, is_different, tolerance, is_exact=False))


def _step(token: int, logits: Logits, difference: float, token_b: str | int) -> StepDifference:
    second, best = np.partition(logits, -2)[-2:]
    return StepDifference(difference, float(np.abs(logits).max()), float(best - second), token, token_b)
