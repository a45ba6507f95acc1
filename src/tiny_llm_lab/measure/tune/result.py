"""What a setting is worth, by the simulator or by a server, and which is best."""

from collections.abc import Iterable
from dataclasses import dataclass

from tiny_llm_lab.measure.load.record import LoadRun
from tiny_llm_lab.measure.load.results.goodput import Goodput
from tiny_llm_lab.measure.load.results.result import summarize
from tiny_llm_lab.measure.simulate.outcome import Outcome
from tiny_llm_lab.measure.simulate.setting import Setting


@dataclass(frozen=True)
class Result:
    """Requests per second inside both SLOs, and p99 latencies in ms; None if nothing was measured."""

    setting: Setting
    goodput: float
    itl_ms: float | None
    ttft_ms: float | None

    @classmethod
    def simulated(cls, setting: Setting, outcome: Outcome) -> "Result":
        """What the simulator says."""
        p99_ms = (each.p99_s * 1e3 if each else None for each in (outcome.itl, outcome.ttft))
        return cls(setting, outcome.goodput, *p99_ms)

    @classmethod
    def measured(cls, setting: Setting, run: LoadRun) -> "Result":
        """What the clients of a server saw, as `bench-serve` counts it."""
        goodput = Goodput(ttft=setting.ttft_slo_ms, itl=setting.itl_slo_ms)
        found = summarize(run, [99], goodput, is_open_loop=True)
        return cls(setting, found["request_goodput"], found["p99_itl_ms"], found["p99_ttft_ms"])

    @property
    def worst(self) -> tuple[float, str]:
        """The latency that is closest to its limit, or furthest above it: p99 / limit, and a sentence."""
        slo = self.setting
        p99s = (("ITL", self.itl_ms or 0.0, slo.itl_slo_ms), ("TTFT", self.ttft_ms or 0.0, slo.ttft_slo_ms))
        return max(
            (p99 / most, f"p99 {name} is {p99:.1f} ms, and its limit {most:g} ms") for name, p99, most in p99s
        )

    @property
    def is_legal(self) -> bool:
        """Whether both SLOs are met."""
        return self.worst[0] <= 1


def ranked(results: Iterable[Result]) -> list[Result]:
    """The best first: those inside both SLOs by goodput in hundredths of the best, then by p99 ITL.

    The others follow by how far they miss. Of equal results, such as of two numbers of sequences that are
    never reached, the first stays.
    """
    first = dict[tuple[float | None, ...], Result]()
    for each in results:
        first.setdefault((each.goodput, each.itl_ms, each.ttft_ms), each)
    most = max((each.goodput for each in first.values()), default=0.0) or 1.0

    def key(each: Result) -> tuple[float, ...]:
        met = (0.0, -round(each.goodput / most, 2), each.itl_ms or 0.0)
        return met if each.is_legal else (1.0, each.worst[0])

    return sorted(first.values(), key=key)
