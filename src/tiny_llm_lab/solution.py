"""The one switch: whose code do the commands, benchmarks and tests run?"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

from tiny_llm_lab.types import (
    Checkpoint,
    Clock,
    Completion,
    Event,
    EventCallback,
    Model,
    Prompt,
    SamplingParams,
    Tokenizer,
    UserError,
)

PACKAGES = {"mine": "tiny_llm", "ref": "tiny_llm_ref", "mlx-lm": "tiny_llm_lab.baselines.mlx_lm"}


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
    ) -> Iterator[Event]: ...

    def batch_generate(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[str | Sequence[int] | Prompt],
        *,
        max_seq_len: int = 512,
        batch_size: int = 5,
        prefill_step: int = 128,
        sampling: SamplingParams = ...,
        on_event: EventCallback | None = None,
        clock: Clock = time.perf_counter,
    ) -> list[Completion]: ...


def load_solution(name: str = "mine") -> Solution:
    """Import the solution called `name`: "mine", "ref" or "mlx-lm"."""
    if name not in PACKAGES:
        raise UserError(f"unknown solution {name!r}: choose one of {', '.join(PACKAGES)}")
    return cast(Solution, importlib.import_module(PACKAGES[name]))


class Scheduling(Protocol):
    """The classes of week 3 that schedule, as far as the lab calls them: they need no model."""

    BlockPool: Callable[..., Any]
    Scheduler: Callable[..., Any]
    TokenSequence: Callable[..., Any]
    StepSample: Callable[..., Any]
    StepTimeModel: Callable[..., Any]
    BudgetController: Callable[..., Any]
    LatencyPolicy: Callable[..., Any]
    context_work: Callable[[int, int], int]


def load_scheduling(name: str = "mine") -> Scheduling:
    """The same package as `load_solution`, asked for its scheduler. Raises UserError when it has none."""
    return cast(Scheduling, _with(Scheduling, name))


class Engine(Protocol):
    """Week 3's engine, as far as the lab calls it."""

    scheduler: Any
    prefix_cache: Any  # None when off
    spec_stats: Any  # None without speculation

    def generate(
        self, prompts: Sequence[str | Sequence[int] | Prompt], on_event: EventCallback | None = None
    ) -> list[Completion]: ...

    def release(self) -> None: ...


class Serving(Protocol):
    """The classes of week 3 that an engine is built from."""

    Engine: Callable[..., Engine]
    StepLayout: Any
    StepSample: Callable[..., Any]
    StepTimeModel: Callable[..., Any]
    BudgetController: Callable[..., Any]
    LatencyPolicy: Callable[..., Any]
    NgramProposer: Callable[..., Any]
    DraftModelProposer: Callable[..., Any]
    context_work: Callable[[int, int], int]


def load_serving(name: str = "mine") -> Serving:
    """The same package as `load_solution`, asked for its engine. Raises UserError when it has none."""
    return cast(Serving, _with(Serving, name))


def _with(protocol: type, name: str) -> object:
    module = load_solution(name)
    missing = [each for each in protocol.__annotations__ if not hasattr(module, each)]
    if missing:
        raise UserError(f"solution {name!r} has no {missing[0]}: choose --solution ref or mine")
    return module
