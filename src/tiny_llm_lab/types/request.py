"""What is asked of a model, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Final, Literal

from tiny_llm_lab.types.errors import UserError

FinishReason = Literal["stop", "length", "abort", "error"]
PriorityClass = Literal["interactive", "batch"]
PRIORITY_CLASSES: Final[tuple[PriorityClass, ...]] = ("interactive", "batch")  # the most urgent first
MAX_LOGPROBS: Final = 20
# Logits divided by less, or by more, leave the range of float32.
MIN_TEMPERATURE: Final = 1e-6
MAX_TEMPERATURE: Final = 1e6


@dataclass(frozen=True)
class SamplingParams:
    """How one request picks its tokens and when it stops; the defaults are greedy decoding.

    `stop` takes one string too, as one stop string. Raises UserError for a value of another type or outside
    its range.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int | None = None  # None = as many as fit in max_seq_len
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # of each token, and of so many likeliest ones beside it; None = off

    def __post_init__(self) -> None:
        stop: object = self.stop  # as given: what is annotated is what it becomes
        if isinstance(stop, str):
            object.__setattr__(self, "stop", (stop,))
        self._check_types()
        is_greedy = self.temperature == 0
        checks = {
            f"temperature must be 0 (greedy) or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}": is_greedy
            or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE,
            "top_k must be 0 (off) or more": self.top_k >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be at least 0 and below 1": 0 <= self.min_p < 1,
            "seed must be 0 to 2**64 - 1": 0 <= self.seed < 2**64,
            "max_tokens must be 1 or more": self.max_tokens is None or self.max_tokens >= 1,
            "a stop string must not be empty": all(self.stop),
            f"logprobs must be 0 to {MAX_LOGPROBS}": self.logprobs is None
            or 0 <= self.logprobs <= MAX_LOGPROBS,
        }
        for complaint, holds in checks.items():
            if not holds:
                raise UserError(complaint)

    def _check_types(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            _check_type(name, getattr(self, name), Real, "a number")
        for name in ("top_k", "seed"):
            _check_type(name, getattr(self, name), Integral, "a whole number")
        for name in ("max_tokens", "logprobs"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), Integral, "a whole number or None")
        if not isinstance(self.ignore_eos, bool):
            raise UserError(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        stop: object = self.stop
        if not isinstance(stop, tuple) or not all(isinstance(each, str) for each in stop):
            raise UserError(f"stop must be a string or a tuple of strings, not {stop!r}")


def _check_type(name: str, value: object, kind: type, meaning: str) -> None:
    # True is a number to Python, but not what a request means by one.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} must be {meaning}, not {value!r}")


@dataclass(frozen=True)
class Prompt:
    """One request as it reaches `batch_generate` or an engine: text or token ids, and when it arrives."""

    content: str | Sequence[int]
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0  # after the call began; earlier ones are served first
    priority: int = 0  # lower is more urgent, in an engine with policy "priority"
    priority_class: PriorityClass = "interactive"  # an engine runs "batch" prompts on spare capacity


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
    def itl_s(self) -> list[float]:
        """Inter-token latencies: every gap between consecutive tokens."""
        return [after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)]


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
    """A chunk was computed: `num_computed_tokens` of the prompt are in the cache now."""

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
