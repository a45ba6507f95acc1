"""Requests that arrive over time, and the lengths that are drawn for them."""

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import log
from typing import Final, Literal

from tiny_llm_lab.runtime.console.field_flags import flag
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class ArrivalSettings:
    """The rate of arrivals and how even they are; named as in `vllm bench serve`."""

    request_rate: float = flag(math.inf, "requests per second; inf sends all at once", metavar="RPS")
    burstiness: float = flag(
        1.0, "shape of the gamma gaps: 1 is Poisson, less is bursts, inf is even", metavar="X"
    )
    ramp_up_strategy: Literal["off", "linear", "exponential"] = flag(
        "off", "raise the rate from the first request to the last, linearly or exponentially"
    )
    ramp_up_start_rps: float | None = flag(None, "requests per second at the start", metavar="RPS")
    ramp_up_end_rps: float | None = flag(None, "requests per second at the end", metavar="RPS")

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise UserError(f"--request-rate must be above 0, or inf, not {self.request_rate:g}")
        if not self.burstiness > 0:
            raise UserError(f"--burstiness must be above 0, or inf, not {self.burstiness:g}")
        ramp = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy == "off":
            if ramp != (None, None):
                raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        elif not all(rate is not None and 0 < rate < math.inf for rate in ramp):
            raise UserError(
                "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, both above 0"
            )
        elif self.request_rate != math.inf:
            raise UserError("--ramp-up-strategy sets the rate: leave out --request-rate")

    @property
    def is_open_loop(self) -> bool:
        """Whether requests have times at which they are due."""
        return self.request_rate != math.inf or self.ramp_up_strategy != "off"


def gamma_gaps(rng: random.Random, shape: float) -> Iterator[float]:
    """Times between arrivals, 1 in the mean; shape 1 is a Poisson process, less is bursts, inf no chance."""
    while True:
        yield 1.0 if shape == math.inf else rng.gammavariate(shape, 1 / shape)


def arrival_times(count: int, settings: ArrivalSettings, seed: int) -> list[float]:
    """`count` times in seconds, the first 0.

    At a constant rate the gaps are scaled so that the last request arrives as at fixed intervals: runs of
    any seed offer the same load.
    """
    if not settings.is_open_loop:
        return [0.0] * count
    units = gamma_gaps(random.Random(seed), settings.burstiness)
    gaps = [next(units) / _rate(settings, number, count) for number in range(count - 1)]
    times = [0.0, *accumulate(gaps)]
    if settings.ramp_up_strategy == "off" and times[-1] > 0:
        scale = (count - 1) / settings.request_rate / times[-1]
        times = [time * scale for time in times]
    return times


def _rate(settings: ArrivalSettings, number: int, count: int) -> float:
    """Requests per second after request `number`: a ramp goes by numbers, from the first to the last."""
    start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
    if start is None or end is None:
        return settings.request_rate
    done = number / max(1, count - 2)
    if settings.ramp_up_strategy == "linear":
        return start + (end - start) * done
    return start * (end / start) ** done


CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Request:
    """Lengths in tokens; it answers exactly `max_tokens` tokens. `kind` groups requests in reports."""

    kind: str
    prompt_len: int
    max_tokens: int
    arrival_s: float = 0.0  # after the start of the run, or after the token that it waits for
    after_tokens: int = 0  # it waits until request 0 has made this many

    @property
    def num_tokens(self) -> int:
        return self.prompt_len + self.max_tokens


@dataclass(frozen=True)
class LoadRequest:
    """What is sent, and when; `kind` groups requests in reports.

    `prompt` is text or token ids. A chat sends `messages`; without any, the prompt as one user message.
    """

    prompt: str | tuple[int, ...]
    num_prompt_tokens: int  # of the prompt alone; a chat template adds its own
    max_tokens: int
    kind: str = ""
    arrival_s: float = 0.0  # scheduled, after the start of the run
    messages: tuple[Mapping[str, str], ...] = ()


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
