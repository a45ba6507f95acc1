"""What a simulation records: finished requests, and how often each gap between tokens occurred."""

from collections import Counter
from dataclasses import dataclass, field

from tiny_llm_lab.types import PriorityClass


@dataclass(frozen=True)
class FinishedRequest:
    """When a request arrived, got its first and its last token; lengths in tokens."""

    number: int
    arrival_s: float
    first_s: float
    last_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_late_gaps: int  # gaps longer than the ITL SLO
    priority_class: PriorityClass = "interactive"

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """The mean gap; None with a single token."""
        num_gaps = self.num_output_tokens - 1
        return (self.last_s - self.first_s) / num_gaps if num_gaps else None


@dataclass
class RunStats:
    """What happened on one replica, or on all of them together.

    Requests in the same step share its gap, so that a million tokens make far fewer entries. Gaps and
    num_preemptions count interactive requests only; steps, tokens and busy_s count all.
    """

    finished: list[FinishedRequest] = field(default_factory=list)
    gaps: Counter[float] = field(default_factory=Counter)
    num_steps: int = 0
    num_tokens: int = 0  # computed, prompts and recomputed tokens included
    num_preemptions: int = 0
    num_batch_preemptions: int = 0
    busy_s: float = 0.0

    def add(self, other: "RunStats") -> None:
        """Add the records of another replica."""
        self.finished += other.finished
        self.gaps.update(other.gaps)
        self.num_steps += other.num_steps
        self.num_tokens += other.num_tokens
        self.num_preemptions += other.num_preemptions
        self.num_batch_preemptions += other.num_batch_preemptions
        self.busy_s += other.busy_s
