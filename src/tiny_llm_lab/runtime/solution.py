"""The one switch: whose code do the commands, benchmarks and tests run?"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Unpack, cast

from tiny_llm_lab.types import (
    BatchKeywords,
    Checkpoint,
    ChunkPolicy,
    Completion,
    DraftGate,
    Event,
    Model,
    PagedModel,
    PausingPolicy,
    PrefillCounts,
    Prompt,
    Proposer,
    SamplingParams,
    Tokenizer,
    UserError,
)
from tiny_llm_lab.types.packages import PACKAGES
from tiny_llm_lab.types.scheduling import serving
from tiny_llm_lab.types.scheduling.draft import MtpProposer


class Solution(Protocol):
    """All that the lab may call on "mine", "ref" or "mlx-lm"."""

    def build_model(self, checkpoint: Checkpoint) -> Model: ...

    def stream_generate(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        sampling: SamplingParams = ...,
        *,
        prefill_step: int = 128,
        max_seq_len: int | None = None,
        async_scheduling: bool | None = None,
    ) -> Iterator[Event]: ...

    def batch_generate(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[str | Sequence[int] | Prompt],
        **keywords: Unpack[BatchKeywords],
    ) -> list[Completion]: ...


class LoopPolicies(Protocol):
    """The classes of days 2.7 and 2.8 that choose chunks and prompts for `batch_generate`, or count them."""

    AdaptiveChunker: Callable[[float], ChunkPolicy]
    ChunkedPrefillMetrics: Callable[[], PrefillCounts]
    PrefillScheduler: Callable[..., PausingPolicy]


class Scheduling(Protocol):
    """The classes of week 3 that schedule, as far as the lab calls them: they need no model."""

    BlockPool: Callable[[int, int], serving.BlockPool]
    Scheduler: Callable[..., serving.Scheduler]
    TokenSequence: Callable[..., serving.TokenSequence]
    StepTimeModel: Callable[..., serving.StepTimeModel]
    LatencyPolicy: serving.MakeLatencyPolicy
    BudgetController: Callable[[serving.LatencyPolicy], serving.BudgetController]


class Serving(Protocol):
    """What an engine is built from."""

    build_model: Callable[[Checkpoint], PagedModel]
    Engine: serving.MakeEngine
    StepTimeModel: Callable[..., serving.StepTimeModel]
    LatencyPolicy: serving.MakeLatencyPolicy
    BudgetController: Callable[[serving.LatencyPolicy], serving.BudgetController]
    NgramProposer: Callable[..., Proposer]
    DraftModelProposer: Callable[..., Proposer]
    DraftGate: Callable[[], DraftGate]
    MtpModel: Callable[..., PagedModel]
    MtpProposer: Callable[..., MtpProposer]


def load_solution(name: str = "mine") -> Solution:
    """Import the solution called `name`: "mine", "ref" or "mlx-lm"."""
    if name not in PACKAGES:
        raise UserError(f"unknown solution {name!r}: choose one of {', '.join(PACKAGES)}")
    return cast(Solution, importlib.import_module(PACKAGES[name]))


def load_loop_policies(name: str = "mine") -> LoopPolicies:
    """The same package as `load_solution`, asked for its policies. Raises UserError when it has none."""
    return cast(LoopPolicies, _with(LoopPolicies, name))


def load_scheduling(name: str = "mine") -> Scheduling:
    """The same package as `load_solution`, asked for its scheduler. Raises UserError when it has none."""
    return cast(Scheduling, _with(Scheduling, name))


def load_serving(name: str = "mine") -> Serving:
    """The same package as `load_solution`, asked for its engine. Raises UserError when it has none."""
    return cast(Serving, _with(Serving, name))


def _with(protocol: type, name: str) -> object:
    module = load_solution(name)
    missing = [each for each in protocol.__annotations__ if not hasattr(module, each)]
    if missing:
        raise UserError(f"solution {name!r} has no {missing[0]}: choose --solution ref or mine")
    return module
