"""What the lab may call on the scheduler and the engine of a solution."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tiny_llm_lab.types.computing.model import PagedModel, Tokenizer
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.logits import LogitsProcessor
from tiny_llm_lab.types.request import Clock, Completion, EventCallback, PriorityClass, Prompt
from tiny_llm_lab.types.sampling import SamplingParams
from tiny_llm_lab.types.scheduling.async_scheduling import is_async_scheduling
from tiny_llm_lab.types.scheduling.defaults import ignore_sequences
from tiny_llm_lab.types.scheduling.draft import DraftGate, Proposer
from tiny_llm_lab.types.scheduling.engine import EngineOutput, OnStep, SchedulerConfig, StepPlan
from tiny_llm_lab.types.scheduling.no_prefix_disk import NO_PREFIX_DISK, NoPrefixDisk
from tiny_llm_lab.types.scheduling.no_states import NoSnapshots
from tiny_llm_lab.types.scheduling.step_time import StepTimeError


class BlockPool(Protocol):
    """Blocks of the KV cache, as numbers."""

    num_blocks: int
    block_size: int

    @property
    def num_free(self) -> int: ...
    def allocate(self, count: int) -> list[int]: ...
    def free(self, blocks: Sequence[int]) -> None: ...


class TokenSequence(Protocol):
    """What a scheduler knows about one request."""

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int

    @property
    def num_tokens(self) -> int: ...
    def needs_sample(self, num_new_tokens: int) -> bool: ...


class SchedulerState(Protocol):
    """The sequences of a scheduler. Both lists are in the order of its policy."""

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
    """Predicts how long a step takes. The three counts are as in `StepSample`.

    `small` and `large` are (a, b, c, d) of a + b * tokens + c * attended + d * stored, in seconds, for steps
    of at most `split_tokens` tokens and for others.
    """

    split_tokens: int
    small: Sequence[float]
    large: Sequence[float]

    def predict(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int = 0) -> float: ...
    def record(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int, seconds: float) -> None: ...
    def error(self) -> StepTimeError: ...


class LatencyPolicy(Protocol):
    """Turns a limit on the inter-token latency into token budgets."""

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
    def record(self, slices: Sequence[Slice], seconds: float) -> None: ...


class PrefixCacheStats(Protocol):
    """The counters of a prefix cache."""

    num_query_tokens: int
    num_hit_tokens: int

    @property
    def snapshots(self) -> NoSnapshots: ...


class SpecStats(Protocol):
    """The counters of speculation."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_rate(self) -> float | None: ...


class EngineCore(Protocol):
    """What an engine computes with."""

    @property
    def config(self) -> SchedulerConfig: ...
    @property
    def options(self) -> "EngineOptions": ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def prefix_cache(self) -> PrefixCacheStats | None: ...
    @property
    def spec_stats(self) -> SpecStats | None: ...

    def reconfigure(self, config: SchedulerConfig) -> None: ...


class Engine(Protocol):
    """Serves many requests on one model, one step at a time."""

    @property
    def core(self) -> EngineCore: ...
    @property
    def has_requests(self) -> bool: ...

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
    def step(self) -> list[EngineOutput]: ...
    def abort(self, request_id: str) -> bool: ...

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]: ...

    def release(self) -> None: ...


BeforeDraft = Callable[[Sequence[Any]], None]  # with the running sequences


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is built from besides model, tokenizer and `SchedulerConfig`. Fixed while it runs."""

    num_blocks: int = 512  # of the KV cache
    block_size: int = 16  # tokens of a block
    kv_bits: int | None = None  # of a stored number: 8, or None for the model's dtype
    enable_prefix_caching: bool = True
    num_snapshots: int = 64  # of a hybrid model's states in the prefix cache, each of ModelConfig.state_bytes
    snapshot_every: int = 2048  # tokens after which a long text has one more; a multiple of block_size
    proposer: Proposer | None = None  # drafts tokens for decodes (from task 3.9.6 on); None = no drafts
    # Called with the running sequences before drafts are made (from task 4.4.5 on).
    before_draft: BeforeDraft = ignore_sequences
    # Chooses the token budget of every step (from task 3.8.3 on); None = always max_num_batched_tokens.
    budget_controller: BudgetController | None = None
    draft_gate: DraftGate | None = None  # chooses the drafts to verify (task 3.9.7); None = all drafts
    # Launch a step of decodes before the previous step is read (from task 3.7.2 on); None = on a GPU.
    async_scheduling: bool | None = None
    on_step: OnStep | None = None  # called after every step with its plan and its `StepStats`
    clock: Clock = time.perf_counter
    prefix_disk: NoPrefixDisk = NO_PREFIX_DISK  # keeps prefixes when the process ends; the reference's alone

    @property
    def is_ahead(self) -> bool:
        """Whether steps may be launched early: not with a proposer or a controller, which need the tokens."""
        needs_tokens = self.proposer is not None or self.budget_controller is not None
        return is_async_scheduling(self.async_scheduling) and not needs_tokens

    def require_chunks(self, config: SchedulerConfig) -> None:
        """Raises UserError for a controller whose budget may be below every chunk that `config` allows."""
        is_paced = self.budget_controller is not None
        if is_paced and (config.chunk_grid or not config.enable_chunked_prefill):
            raise UserError("a latency SLO sizes chunks: set chunk_grid to 0 and keep chunked prefill on")


class MakeEngine(Protocol):
    """The class of engines."""

    def __call__(
        self,
        model: PagedModel,
        tokenizer: Tokenizer,
        config: SchedulerConfig = ...,
        options: EngineOptions = ...,
    ) -> Engine: ...
