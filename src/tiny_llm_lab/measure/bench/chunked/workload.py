"""Long prompts that arrive while short ones are being answered, counted in tokens, not in words.

A chunked-prefill benchmark shows nothing unless three things hold: a request is decoding when a long prompt
comes, a request arrives while it is being computed, and "long" is long in tokens. `overlap_complaint` checks
the first two on every run.
"""

from dataclasses import dataclass, replace
from typing import Final

from tiny_llm_lab.measure.bench.fresh import run_fresh
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, Spec
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.console.field_flags import at_least, at_least_one, flag
from tiny_llm_lab.types import UserError

EARLY_SHARE: Final = 0.4
# Late prompts arrive in this part of the time that one unchunked long prefill takes.
_LATE_FROM, _LATE_TO = 0.1, 0.6
# From one long prompt to the next, in unchunked long prefills. Below one, so that no pause comes between them
# even if the machine has become faster since we measured its speed.
_LONG_SPACING: Final = 0.7


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How many requests of which length."""

    num_long: int = flag(3, "number of long prompts", at_least_one)
    long_tokens: int = flag(1024, "tokens in a long prompt", at_least_one)
    long_max_tokens: int = flag(16, "tokens in the answer to a long prompt", at_least_one)
    burst: int = flag(1, "number of long prompts that arrive together", at_least_one)
    num_short: int = flag(
        10, "number of short prompts; two in five arrive at the start, the others later", at_least(2)
    )
    short_tokens: int = flag(24, "tokens in a short prompt", at_least_one)
    max_tokens: int = flag(128, "tokens in the answer to a short prompt", at_least(2))

    def __post_init__(self) -> None:
        if self.long_tokens <= self.short_tokens:
            raise UserError("--long-tokens must be above --short-tokens")

    def __str__(self) -> str:
        together = f", {self.burst} at a time," if self.burst > 1 else ""
        return (
            f"{self.num_long} prompts of {self.long_tokens} tokens arrive{together} among "
            f"{self.num_short} of {self.short_tokens}"
        )

    @property
    def num_early(self) -> int:
        """Short requests that arrive at the start; the others arrive later."""
        return max(1, round(EARLY_SHARE * self.num_short))

    def requests(self, early_s: float = 0.0, long_s: float = 0.0) -> tuple[Request, ...]:
        """The early requests, then each long one followed by its late ones; arrivals fit the machine.

        `early_s` is how long the early ones take to get their first tokens, `long_s` one unchunked
        prefill of a long prompt; with 0 all arrive at once.
        """
        result = [Request("early", self.short_tokens, self.max_tokens)] * self.num_early
        num_late = self.num_short - self.num_early
        for number in range(self.num_long):
            first = number - number % self.burst
            start_s = early_s * 1.2 + first * _LONG_SPACING * long_s
            result.append(Request("long", self.long_tokens, self.long_max_tokens, start_s))
            own = num_late // self.num_long + (number < num_late % self.num_long)
            for place in range(own):
                share = _LATE_FROM + (_LATE_TO - _LATE_FROM) * place / max(own - 1, 1)
                arrival_s = start_s + share * long_s
                result.append(Request("late", self.short_tokens, self.max_tokens, arrival_s))
        return tuple(result)

    def calibrated(self, spec: Spec) -> tuple[Spec, dict[str, str | float]]:
        """The spec with arrivals that suit this machine, found in a small run, and facts about it."""
        small = replace(self, num_long=3, num_short=2, long_max_tokens=1, max_tokens=2)
        whole = Schedule(UNCHUNKED) if spec.schedule.prefill_step else Schedule(budget=UNCHUNKED)
        # One at a time, because an engine that prefills several prompts together would make all look slow.
        one = replace(spec, requests=small.requests(), batch_size=1, schedule=whole)
        run = run_fresh(measure, one, spec.threads)
        # The fastest of three: other programs on the machine can only add to the time.
        long_s = min(end_s - start_s for start_s, end_s in run.long_spans().values())
        # Between two early prompts there is a decode step; twice the first one's time covers it.
        first_s = run.of_kind("early")[0].ttft_s or 0.0
        requests = self.requests(2 * first_s * self.num_early, long_s)
        return replace(spec, requests=requests), run.facts | {"unchunked_long_prefill_s": long_s}


def overlap_complaint(run: Run) -> str | None:
    """Why a run measured nothing useful; None if requests decoded and arrived during long prefills."""
    spans = run.long_spans()
    idle = [idx for idx, span in spans.items() if not run.decoding_during(span)]
    if len(spans) < sum(request.kind == "long" for request in run.requests):
        return "a long prompt was never in prefill: run it again"
    if idle:
        return (
            f"no request was decoding while long prompt {idle[0]} was in prefill: "
            "raise --max-tokens, or use a quieter machine"
        )
    arrivals = [timing.arrival_s for timing in run.of_kind("late")]
    if not any(start <= arrival < end for start, end in spans.values() for arrival in arrivals):
        return "no short prompt arrived while a long one was in prefill: run again on a quieter machine"
    return None
