"""The one switch: whose code do the commands, benchmarks and tests run?"""

import importlib
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

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
