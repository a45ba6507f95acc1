"""Lengths of requests, drawn from one seed."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import log
from typing import Final

from tiny_llm_lab.measure.traffic.request import Request, gamma_gaps
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class LengthKind:
    """Lognormal lengths: medians, and the standard deviation of the logarithm (0 = always the median)."""

    share: float
    prompt_median: int
    prompt_sigma: float
    output_median: int
    output_sigma: float


# The medians of sharegpt and arxiv are those that Sarathi-Serve (arXiv 2403.02310) gives for its two
# datasets; every spread, and all of chat and documents, is assumed.
LENGTHS: Final[dict[str, tuple[LengthKind, ...]]] = {
    "chat": (LengthKind(1.0, 200, 0.8, 150, 0.7),),
    "sharegpt": (LengthKind(1.0, 1730, 0.9, 415, 0.55),),
    "arxiv": (LengthKind(1.0, 7059, 0.4, 208, 0.6),),
    "documents": (LengthKind(0.9, 200, 0.8, 150, 0.7), LengthKind(0.1, 16_000, 0.2, 200, 0.5)),
}

# First turns of ShareGPT as `vllm bench serve` takes them. Chosen so that the means, within its limits, are
# the 230 and 203 tokens that 1,000 of them have in vLLM's pull request 18566; the spreads are assumed.
LIKE_SHAREGPT: Final = LengthKind(1.0, 173, 1.1, 137, 0.9)
LEAST_SHAREGPT: Final = 4  # vLLM leaves out shorter prompts and answers


def parse_lengths(text: str) -> tuple[LengthKind, ...]:
    """A name of LENGTHS, or "fixed:PROMPT:OUTPUT". Raises UserError for anything else."""
    if text in LENGTHS:
        return LENGTHS[text]
    fixed = re.fullmatch(r"fixed:0*([1-9][0-9]*):0*([1-9][0-9]*)", text)
    if fixed is None:
        choices = ", ".join(LENGTHS)
        raise UserError(f"--lengths {text}: choose {choices}, or fixed:PROMPT:OUTPUT such as fixed:9:5")
    return (LengthKind(1.0, int(fixed[1]), 0.0, int(fixed[2]), 0.0),)


def draw_requests(
    count: int, rate: float, burstiness: float, kinds: Sequence[LengthKind], seed: int, max_len: int
) -> list[Request]:
    """`count` requests at `rate` per second, in order of arrival.

    The times between arrivals are gamma distributed with shape `burstiness`. At another rate the same seed
    gives the same requests at scaled times. Prompt and answer together have at most `max_len` tokens: longer
    prompts are cut.
    """
    lengths, weights = random.Random(seed + 1), [kind.share for kind in kinds]
    gaps = islice(gamma_gaps(random.Random(seed), burstiness), count - 1)
    requests = []
    for now in accumulate(gaps, initial=0.0):
        kind = kinds[0] if len(kinds) == 1 else lengths.choices(kinds, weights)[0]
        num_output = min(_draw(lengths, kind.output_median, kind.output_sigma), max_len - 1)
        num_prompt = min(_draw(lengths, kind.prompt_median, kind.prompt_sigma), max_len - num_output)
        requests.append(Request("", num_prompt, num_output, now / rate))
    return requests


def draw_lengths(
    rng: random.Random, kind: LengthKind, most_prompt: int, most: int
) -> Iterator[tuple[int, int]]:
    """Tokens of prompts and answers without end; pairs outside of the limits are left out, as vLLM does."""
    while True:
        num_prompt = _draw(rng, kind.prompt_median, kind.prompt_sigma)
        num_output = _draw(rng, kind.output_median, kind.output_sigma)
        is_long_enough = min(num_prompt, num_output) >= LEAST_SHAREGPT
        if is_long_enough and num_prompt <= most_prompt and num_prompt + num_output <= most:
            yield num_prompt, num_output


def _draw(rng: random.Random, median: int, sigma: float) -> int:
    return median if sigma == 0 else max(1, round(rng.lognormvariate(log(median), sigma)))
