"""What a simulation remembers: one line per request, and how often each gap between tokens occurred."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Served:
    """A request that ended: when it came, got its first and its last token; lengths in tokens."""

    number: int
    arrival_s: float
    first_s: float
    last_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_late_gaps: int  # gaps longer than the ITL SLO
    is_batch_class: bool = False

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap; None with a single token."""
        return (
            (self.last_s - self.first_s) / (self.num_output_tokens - 1)
            if self.num_output_tokens > 1
            else None
        )


@dataclass
class Ledger:
    """What happened on one replica, or on all of them together.

    Requests that run in the same step share its gap, so that a million tokens make far fewer entries. Gaps
    and num_preemptions are of interactive requests only; steps, tokens and busy_s of all.
    """

    itl_slo_s: float
    served: list[Served] = field(default_factory=list)
    gaps: Counter[float] = field(default_factory=Counter)
    num_steps: int = 0
    num_tokens: int = 0  # computed, prompts included and what was computed again
    num_preemptions: int = 0
    num_batch_preemptions: int = 0  # of batch-class requests
    busy_s: float = 0.0

    def add(self, other: "Ledger") -> None:
        """Take in what another replica did."""
        self.served += other.served
        self.gaps.update(other.gaps)
        self.num_steps += other.num_steps
        self.num_tokens += other.num_tokens
        self.num_preemptions += other.num_preemptions
        self.num_batch_preemptions += other.num_batch_preemptions
        self.busy_s += other.busy_s
