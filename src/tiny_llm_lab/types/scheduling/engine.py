"""What week 3's scheduler and engine share with their users."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tiny_llm_lab.types.errors import UserError, require
from tiny_llm_lab.types.request import Completion, Event

Policy = Literal["fcfs", "fair", "priority"]
StepMode = Literal["mixed", "alternate"]


@dataclass(frozen=True)
class SchedulerConfig:
    """How many tokens a step may take, and whose. The names are vLLM's if vLLM has the same setting."""

    max_num_batched_tokens: int = 2048  # tokens of a step, decodes included
    max_num_seqs: int = 64  # requests that run at a time
    # Tokens of one request in the KV cache; its newest token is never stored. Unused positions cost nothing,
    # but a prompt of 40960 tokens would take minutes on a CPU.
    max_model_len: int = 4096
    long_prefill_token_threshold: int = 0  # tokens of one request in a step; 0 = off
    enable_chunked_prefill: bool = True
    policy: Policy = "fcfs"
    step_mode: StepMode = "mixed"  # "alternate": a step has prefill chunks or decodes, never both
    chunk_grid: int = 0  # chunks end at multiples of this many tokens of their request; 0 = anywhere
    max_num_partial_prefills: int = 0  # admitted requests in prefill at the same time; 0 = any

    def __post_init__(self) -> None:
        budget, threshold = self.max_num_batched_tokens, self.long_prefill_token_threshold
        grid = self.chunk_grid
        checks = {
            "max_num_batched_tokens must be 1 or more": budget >= 1,
            "max_num_seqs must be 1 or more": self.max_num_seqs >= 1,
            "max_model_len must be 1 or more": self.max_model_len >= 1,
            "long_prefill_token_threshold must be 0 (off) or more": threshold >= 0,
            "chunk_grid must be 0 (off) or more": grid >= 0,
            "max_num_partial_prefills must be 0 (any) or more": self.max_num_partial_prefills >= 0,
            f"max_num_batched_tokens ({budget}) must be at least max_num_seqs ({self.max_num_seqs}): "
            "every running request takes a token": budget >= self.max_num_seqs,
            f"long_prefill_token_threshold ({threshold}) must be at most max_model_len "
            f"({self.max_model_len})": threshold <= self.max_model_len,
            f"without chunked prefill a prompt takes one step: raise max_num_batched_tokens ({budget}) to "
            f"max_model_len ({self.max_model_len}), or enable it": self.enable_chunked_prefill
            or budget >= self.max_model_len,
            "policy must be fcfs, fair or priority": self.policy in ("fcfs", "fair", "priority"),
            "step_mode must be mixed or alternate": self.step_mode in ("mixed", "alternate"),
            f"chunk_grid ({grid}) must be at most max_num_batched_tokens ({budget})": grid <= budget,
        }
        require(checks)

    def validate_change(self, new: "SchedulerConfig") -> None:
        """Raises UserError if `new` changes what current requests were accepted or ordered by."""
        if (new.max_model_len, new.policy) != (self.max_model_len, self.policy):
            raise UserError("max_model_len and policy are fixed when the engine starts: start another one")


@dataclass(frozen=True)
class StepPlan:
    """What a step computes: how many tokens of which request, in the order of its rows."""

    num_scheduled_tokens: Mapping[str, int]  # by request id; running requests first
    preempted: tuple[str, ...] = ()  # requests that lost their blocks in this step and wait again

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True)
class StepStats:
    """When a step ran, and the engine's state after it."""

    start_s: float  # before it was planned and launched, on the engine's clock
    end_s: float  # when its tokens were read
    num_prompt_tokens: int  # how many of its tokens are prompt tokens; the rest are decodes and drafts
    num_running: int
    num_waiting: int
    num_free_blocks: int  # cached blocks included


OnStep = Callable[[StepPlan, StepStats], None]


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a token was: natural logarithms, from the model's own logits.

    Temperature, truncation, penalties, biases and processors have no effect (vLLM's raw_logprobs).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob) of the likeliest tokens, best first


@dataclass(frozen=True)
class EngineOutput:
    """What is new for one request since its last output."""

    request_id: str
    token_ids: tuple[int, ...]  # without the end-of-sequence token
    text: str  # that is now certain to be part of the answer
    completion: Completion | None = None  # once the request has ended
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of token_ids, if the request asked for them
    events: tuple[Event, ...] = ()  # the same as events, after the chunks' events; DoneEvent last
    num_cached_tokens: int = 0  # tokens of the prompt found in the prefix cache
    # Comes with the first token if the request asked for it: one for each prompt token, the first is None.
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
