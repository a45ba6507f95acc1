"""One request of a measurement: by its lengths alone, or as it is sent to a server."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

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
    arrival_s: float = 0.0  # after the start of the run

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
