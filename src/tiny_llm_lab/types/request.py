"""Requests to a model, and their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures
from tiny_llm_lab.types.logits import LogitsProcessor
from tiny_llm_lab.types.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
PriorityClass = Literal["interactive", "batch"]
PRIORITY_CLASSES: Final[tuple[PriorityClass, ...]] = ("interactive", "batch")  # the most urgent first


@dataclass(frozen=True)
class Prompt:
    """One request to `batch_generate` or an engine: text or token ids, and when it arrives."""

    content: str | Sequence[int]
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0  # after the call began; earlier prompts are served first
    priority: int = 0  # lower is more urgent, in an engine with policy "priority"
    priority_class: PriorityClass = "interactive"  # an engine runs "batch" prompts on spare capacity
    processors: tuple[LogitsProcessor, ...] = ()  # in an engine: applied in order, after those of sampling
    pictures: NoPictures = NO_PICTURES  # in an engine: which of the token ids they are


@dataclass(frozen=True)
class Timing:
    """The times of one request, on the clock of its run."""

    arrival_s: float
    token_s: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival; None if there is no token."""
        return self.token_s[0] - self.arrival_s if self.token_s else None

    @property
    def distinct_s(self) -> tuple[float, ...]:
        """The times of the tokens, each time once."""
        return tuple(dict.fromkeys(self.token_s))

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: each gap between consecutive times. Tokens of the same time count as one."""
        return [after - before for before, after in pairwise(self.distinct_s)]


@dataclass(frozen=True)
class Completion:
    """The result of one prompt. `token_ids` does not include the end-of-sequence token."""

    prompt_idx: int
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    timing: Timing
    error: str | None = None
    vector: tuple[float, ...] = ()  # of a request with sampling.pooling, in place of an answer


@dataclass(frozen=True)
class PrefillEvent:
    """A chunk was computed: `num_computed_tokens` of the prompt are now in the cache.

    There are fewer than before if a prefill policy has dropped the cache of a paused prompt (day 2.8).
    """

    prompt_idx: int
    num_computed_tokens: int
    num_prompt_tokens: int
    time_s: float


@dataclass(frozen=True)
class TokenEvent:
    """A token was sampled. `token_id` is None if the event only releases text that was held back."""

    prompt_idx: int
    token_id: int | None
    text: str
    time_s: float


@dataclass(frozen=True)
class DoneEvent:
    """A request ended, with or without an error. There is exactly one for each prompt."""

    completion: Completion


Event = PrefillEvent | TokenEvent | DoneEvent
EventCallback = Callable[[Event], None]
Clock = Callable[[], float]
