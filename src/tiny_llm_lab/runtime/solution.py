"""The one switch: whose code do the commands, benchmarks and tests run?"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from tiny_llm_lab import types
from tiny_llm_lab.types.packages import PACKAGES

if TYPE_CHECKING:  # a solution's classes are typed as the reference's; nothing here imports a solution
    import tiny_llm_ref as ref


class Solution(Protocol):
    """All that the lab may call on "mine", "ref" or "mlx-lm"."""

    def build_model(self, checkpoint: types.Checkpoint) -> types.Model: ...

    def stream_generate(
        self,
        model: types.Model,
        tokenizer: types.Tokenizer,
        prompt: str | Sequence[int],
        sampling: types.SamplingParams = ...,
        *,
        prefill_step: int = 128,
        max_seq_len: int | None = None,
        async_scheduling: bool | None = None,
    ) -> Iterator[types.Event]: ...

    def batch_generate(
        self,
        model: types.Model,
        tokenizer: types.Tokenizer,
        prompts: Sequence[str | Sequence[int] | types.Prompt],
        **keywords: Any,
    ) -> list[types.Completion]: ...


class LoopPolicies:
    """The classes of days 2.7 and 2.8 that choose chunks and prompts for `batch_generate`, or count them."""

    AdaptiveChunker: type[ref.AdaptiveChunker]
    ChunkedPrefillMetrics: type[ref.ChunkedPrefillMetrics]
    PrefillScheduler: type[ref.PrefillScheduler]


class Scheduling:
    """The classes of week 3 that schedule, as far as the lab calls them: they need no model."""

    BlockPool: type[ref.BlockPool]
    Scheduler: type[ref.Scheduler]
    TokenSequence: type[ref.TokenSequence]
    StepTimeModel: type[ref.StepTimeModel]
    LatencyPolicy: type[ref.LatencyPolicy]
    BudgetController: type[ref.BudgetController]


class Serving:
    """What an engine is built from."""

    build_model: Callable[[types.Checkpoint], types.PagedModel]
    Engine: type[ref.Engine]
    StepTimeModel: type[ref.StepTimeModel]
    LatencyPolicy: type[ref.LatencyPolicy]
    BudgetController: type[ref.BudgetController]
    NgramProposer: type[ref.NgramProposer]
    DraftModelProposer: type[ref.DraftModelProposer]
    DraftGate: type[ref.DraftGate]
    MtpModel: Callable[..., ref.MtpModel]  # of the solution's own model
    MtpProposer: type[ref.MtpProposer]


def load_solution(name: str = "mine") -> Solution:
    """Import the solution called `name`: "mine", "ref" or "mlx-lm"."""
    if name not in PACKAGES:
        raise types.UserError(f"unknown solution {name!r}: choose one of {', '.join(PACKAGES)}")
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
        raise types.UserError(f"solution {name!r} has no {missing[0]}: choose --solution ref or mine")
    return module
