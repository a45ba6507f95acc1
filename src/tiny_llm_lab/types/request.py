"""What is asked of a model, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from tiny_llm_lab.types.logits import LogitsProcessor
from tiny_llm_lab.types.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
PriorityClass = Literal["interactive", "batch"]
PRIORITY_CLASSES: Final[tuple[PriorityClass, ...]] = ("interactive", "batch")  # the most urgent first


@dataclass(frozen=True)
class Prompt:
    """One request as it reaches `batch_generate` or an engine: text or token ids, and when it arrives."""

    content: str | Sequence[int]
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0  # after the call began; earlier ones are served first
    priority: int = 0  # lower is more urgent, in an engine with policy "priority"
    priority_class: PriorityClass = "interactive"  # an engine runs "batch" prompts on spare capacity
    processors: tuple[LogitsProcessor, ...] = ()  # in an engine: applied in order, behind those of sampling


@dataclass(frozen=True)
class Timing:
    """When things happened to one request, on the clock of its run."""

    arrival_s: float
    token_s: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival; None without a token."""
        return self.token_s[0] - self.arrival_s if self.token_s else None

    @property
    def distinct_s(self) -> tuple[float, ...]:
        """The times at which tokens came, each once."""
        return tuple(dict.fromkeys(self.token_s))

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: every gap between consecutive times. Tokens that came together are one."""
        return [after - before for before, after in pairwise(self.distinct_s)]


@dataclass(frozen=True)
class Completion:
    """What became of one prompt. `token_ids` leaves out the end-of-sequence token."""

    prompt_idx: int
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    timing: Timing
    error: str | None = None


@dataclass(frozen=True)
class PrefillEvent:
    """A chunk was computed: `num_computed_tokens` of the prompt are in the cache now.

    Fewer than before where a prefill policy has dropped the cache of a paused prompt (day 2.8).
    """

    prompt_idx: int
    num_computed_tokens: int
    num_prompt_tokens: int
    time_s: float


@dataclass(frozen=True)
class TokenEvent:
    """A token was sampled; `token_id` is None when only text held back so far is released."""

    prompt_idx: int
    token_id: int | None
    text: str
    time_s: float


@dataclass(frozen=True)
class DoneEvent:
    """A request ended, well or not; exactly one per prompt."""

    completion: Completion


Event = PrefillEvent | TokenEvent | DoneEvent
EventCallback = Callable[[Event], None]
Clock = Callable[[], float]
