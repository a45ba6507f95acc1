"""What the lab may call on the scheduler and the engine of a solution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypedDict, Unpack

from tiny_llm_lab.types.computing.model import PagedModel, Tokenizer
from tiny_llm_lab.types.logits import LogitsProcessor
from tiny_llm_lab.types.request import Clock, Completion, EventCallback, PriorityClass, Prompt
from tiny_llm_lab.types.sampling import SamplingParams
from tiny_llm_lab.types.scheduling.draft import DraftGate, Proposer
from tiny_llm_lab.types.scheduling.engine import EngineOutput, OnStep, SchedulerConfig, StepPlan
from tiny_llm_lab.types.scheduling.step_time import StepTimeError


class BlockPool(Protocol):
    """Blocks of the KV cache, as numbers."""

    num_blocks: int
    block_size: int

    @property
    def num_free(self) -> int: ...


class TokenSequence(Protocol):
    """What a scheduler knows of one request."""

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int]
    spec_token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int

    @property
    def num_tokens(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def is_decoding(self) -> bool: ...
    def needs_sample(self, num_new_tokens: int) -> bool: ...


class SchedulerState(Protocol):
    """The sequences of a scheduler, both lists in the order of its policy."""

    @property
    def waiting(self) -> Sequence[TokenSequence]: ...
    @property
    def running(self) -> Sequence[TokenSequence]: ...


class Scheduler(SchedulerState, Protocol):
    """Plans steps over sequences."""

    @property
    def pool(self) -> BlockPool: ...

    def add(self, sequence: TokenSequence) -> None: ...
    def schedule(self, token_budget: int | None = None) -> StepPlan: ...
    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None: ...
    def finish(self, request_id: str) -> None: ...


class StepTimeModel(Protocol):
    """Predicts how long a step takes; the three counts are those of a `StepSample`."""

    def predict(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int = 0) -> float: ...
    def record(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int, seconds: float) -> None: ...
    def error(self) -> StepTimeError: ...


class LatencyPolicy(Protocol):
    """Turns a limit on the gap between two tokens into token budgets."""

    model: StepTimeModel


class MakeLatencyPolicy(Protocol):
    """The class of latency policies."""

    def __call__(
        self,
        model: StepTimeModel,
        itl_slo_s: float,
        ttft_slo_s: float | None = None,
        *,
        safety: float | None = None,
        min_prefill_tokens: int = 16,
    ) -> LatencyPolicy: ...


class BudgetController(Protocol):
    """Chooses the token budget of every step."""

    policy: LatencyPolicy

    def token_budget(
        self, now_s: float, scheduler: SchedulerState, last_token_s: Callable[[str], float]
    ) -> int | None: ...
    def record(self, parts: Sequence[tuple[Sequence[int], int, int]], seconds: float) -> None: ...


class PrefixCacheStats(Protocol):
    """The counters of a prefix cache."""

    num_query_tokens: int
    num_hit_tokens: int


class SpecStats(Protocol):
    """The counters of speculation."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_rate(self) -> float | None: ...


class Engine(Protocol):
    """Serves many requests on one model, a step at a time."""

    @property
    def has_requests(self) -> bool: ...
    @property
    def config(self) -> SchedulerConfig: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def prefix_cache(self) -> PrefixCacheStats | None: ...
    @property
    def spec_stats(self) -> SpecStats | None: ...

    def add(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: SamplingParams = ...,
        *,
        priority: int = 0,
        priority_class: PriorityClass = "interactive",
        arrival_s: float | None = None,
        prompt_idx: int | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None: ...
    def reconfigure(self, config: SchedulerConfig) -> None: ...

    def step(self) -> list[EngineOutput]: ...
    def abort(self, request_id: str) -> bool: ...

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]: ...

    def release(self) -> None: ...


class EngineOptions(TypedDict, total=False):
    """The keyword arguments of an engine, which has the defaults."""

    num_blocks: int
    block_size: int
    kv_bits: int | None
    enable_prefix_caching: bool
    proposer: Proposer | None
    budget_controller: BudgetController | None
    draft_gate: DraftGate | None
    async_scheduling: bool | None
    on_step: OnStep | None
    clock: Clock


class MakeEngine(Protocol):
    """The class of engines."""

    def __call__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = ...,
        **options: Unpack[EngineOptions],
    ) -> Engine: ...
