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
            f"{self.num_long} long prompts of {self.long_tokens:,} tokens arrive{together} among "
            f"{self.num_short} short ones of {self.short_tokens}"
        )

    @property
    def num_early(self) -> int:
        """Short requests that arrive at the start; the others arrive later."""
        return max(1, round(EARLY_SHARE * self.num_short))

    def requests(self, long_s: float = 0.0) -> tuple[Request, ...]:
        """The early requests, then each long one followed by its late ones.

        A long one arrives when the first answer has some number of tokens, so on a busy machine too answers
        are being written then. Its late ones follow within `long_s`, one unchunked prefill of a long prompt.
        """
        result = [Request("early", self.short_tokens, self.max_tokens)] * self.num_early
        num_late = self.num_short - self.num_early
        # The early prompts start one after another, while the first of them already makes tokens.
        first = min(2 * self.num_early, self.max_tokens // 2)
        for number in range(self.num_long):
            after = first + (number - number % self.burst) * (self.max_tokens - first) // self.num_long
            result.append(Request("long", self.long_tokens, self.long_max_tokens, after_tokens=after))
            own = num_late // self.num_long + (number < num_late % self.num_long)
            for place in range(own):
                share = _LATE_FROM + (_LATE_TO - _LATE_FROM) * place / max(own - 1, 1)
                late = Request("late", self.short_tokens, self.max_tokens, share * long_s, after)
                result.append(late)
        return tuple(result)

    def calibrated(self, spec: Spec) -> tuple[Spec, dict[str, str | float]]:
        """The spec with late arrivals that suit this machine, found in a small run, and facts about it."""
        small = replace(self, num_long=3, num_short=2, long_max_tokens=1, max_tokens=2)
        whole = Schedule(UNCHUNKED) if spec.schedule.prefill_step else Schedule(budget=UNCHUNKED)
        at_once = tuple(replace(each, after_tokens=0) for each in small.requests())
        # One at a time, because an engine that prefills several prompts together would make all look slow.
        one = replace(spec, requests=at_once, batch_size=1, schedule=whole)
        run = run_fresh(measure, one, spec.threads)
        # The fastest of three: other programs on the machine can only add to the time.
        long_s = min(end_s - start_s for start_s, end_s in run.long_spans().values())
        return replace(spec, requests=self.requests(long_s)), run.facts | {"unchunked_long_prefill_s": long_s}


def overlap_complaint(run: Run) -> str | None:
    """Why a run measured nothing useful; None if requests decoded and arrived during long prefills."""
    spans = run.long_spans()
    idle = [idx for idx, span in spans.items() if not run.decoding_during(span)]
    if len(spans) < sum(request.kind == "long" for request in run.requests):
        return "a long prompt was never in prefill: run it again"
    if idle:
        return (
            f"no request was decoding while long prompt {idle[0]} was in prefill: "
            "raise --max-tokens or --batch-size"
        )
    arrivals = [timing.arrival_s for timing in run.of_kind("late")]
    # A prefill may begin when its prompt arrives. A prompt that arrives with it does not arrive during it.
    during = [(start_s, end_s, run.timings[idx].arrival_s) for idx, (start_s, end_s) in spans.items()]
    if not any(start <= each < end and each > own for start, end, own in during for each in arrivals):
        return "no short prompt arrived while a long one was in prefill: run again on a quieter machine"
    return None
