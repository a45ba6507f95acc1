"""The settings of `batch_generate`, as its keywords and as one object."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiny_llm_lab.types.computing.model_config import ModelConfig
from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.request import Clock, Completion, DoneEvent, Event, EventCallback
from tiny_llm_lab.types.sampling import SamplingParams
from tiny_llm_lab.types.scheduling.arrivals import Arrival, Arrivals, report_refused

if TYPE_CHECKING:  # a prompt that is being computed is a solution's own
    from tiny_llm_ref.generate.request import Request as Prefill


class PrefillPolicy:
    """Chooses whose prompt is computed next: by default one after another, in order of arrival."""

    @property
    def num_waiting(self) -> int:
        """How many prompts the policy has taken from the queue that are not being computed."""
        return 0

    def begin(self, batch_size: int, clock: Clock) -> None:
        """Start a run with `batch_size` rows, and forget everything from before."""

    def select_prefill(
        self, arrivals: Arrivals, running: Prefill | None, num_decoding: int
    ) -> Prefill | Arrival | None:
        """Returns whose chunk is next while `num_decoding` rows are taken.

        Returns `running`, another prefill that continues, or a prompt that starts; None if no prompt may
        start.
        """
        return running or arrivals.pop()

    def release(self) -> None:
        """Free the memory of every prefill that the policy keeps."""


class ChunkPolicy:
    """Chooses how many tokens the next prefill chunk may have: by default the configured size."""

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """Returns the next size, given the configured size and the share of rows that decode; 0 = a pause."""
        return base_chunk_size

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Learn that `chunk_size` tokens took `chunk_time` seconds."""


class PrefillMetrics:
    """Counts chunks and decode steps, by default nothing. Times are seconds."""

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None:
        """A chunk of so many tokens was computed."""

    def record_decode_step(self, decode_time: float) -> None:
        """A step of all active requests was computed."""


def ignore_event(event: Event) -> None:
    """An `on_event` that does nothing."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """How week 2's loop runs. Each default does nothing special."""

    max_seq_len: int = 512  # the most tokens stored for one request
    batch_size: int = 5  # the most requests that hold cache memory
    prefill_step: int | None = 128  # tokens of a chunk; None = by `select_optimal_chunk_size`
    prefill_memory: int = sys.maxsize  # bytes that a chunk may take if prefill_step is None
    chunk_policy: ChunkPolicy = field(default_factory=ChunkPolicy)  # may change the size of every chunk
    prefill_policy: PrefillPolicy = field(default_factory=PrefillPolicy)  # whose chunk is next
    metrics: PrefillMetrics = field(default_factory=PrefillMetrics)  # counts chunks and decode steps
    sampling: SamplingParams = SamplingParams()  # of prompts that have none of their own
    on_event: EventCallback = ignore_event  # called with every chunk, token and end as it happens
    async_scheduling: bool | None = None  # launch a decode step before the last is read; None = on a GPU
    clock: Clock = time.perf_counter

    def updated(self, **keywords: Any) -> BatchSettings:
        """Returns these settings, changed by `keywords`. None keeps a setting, except for prefill_step."""
        given = {name: each for name, each in keywords.items() if each is not None or name == "prefill_step"}
        return BatchSettings(**{**vars(self), **given})

    def require_valid(self, config: ModelConfig) -> None:
        """Raises UserError for a number that is out of range for a model of `config`."""
        if self.batch_size < 1 or (self.prefill_step is not None and self.prefill_step < 1):
            raise UserError("prefill_step and batch_size must be 1 or more")
        limit = config.max_position_embeddings
        if not 1 <= self.max_seq_len <= limit:
            raise UserError(f"max_seq_len must be 1 to {limit} for this model, not {self.max_seq_len}")


class ReportRefused:
    """An `on_event` that says on stderr how many prompts were refused when the last of `num_prompts` ends."""

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts = num_prompts
        self._completions: list[Completion] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, DoneEvent):
            self._completions.append(event.completion)
            if len(self._completions) == self._num_prompts:
                report_refused(sorted(self._completions, key=lambda each: each.prompt_idx))
