"""The input of every lab: servers, sizes, and a way to run requests on several variants in turns."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Final

from tiny_llm_lab.measure.bench.latency import latencies
from tiny_llm_lab.measure.bench.report import Metrics, Row
from tiny_llm_lab.measure.labs.server import Servers, Variant
from tiny_llm_lab.measure.load.client import LoadOptions, run_load
from tiny_llm_lab.measure.load.record import LoadRun, timings
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.runtime.console.talk import Remaining, log
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.metrics import tpot_s
from tiny_llm_lab.types import UserError

Runs = Mapping[str, Sequence[LoadRun]]
SendLoad = Callable[[str, str, Sequence[LoadRequest], LoadOptions], LoadRun]
Workload = Callable[[int], Sequence[LoadRequest]]  # of a round; -1 is the warm-up
_PACE_RUNS: Final = 3
_SLO_SHARE: Final = 0.25  # of the time in which a long prompt is computed at once
_MOST_CACHED: Final = 0.05  # of the prompt tokens of a run: other servers count a common first token
_TOKEN_IDS: Final = (300, 1000)  # ordinary tokens of every vocabulary


@dataclass(frozen=True)
class Sizes:
    """How much each lab does."""

    rounds: int = 5
    streams: int = 30  # answers that are being written when a long prompt comes
    stream_tokens: int = 240  # of each stream; below 100 for a long prompt, or p99 misses the stalls
    num_requests: int = 60  # of traffic
    num_stress: int = 20  # rounds of `stress`
    num_probes: int = 5  # rates that `capacity` tries
    num_long: int = 3  # long prompts of `sweep` and `itl`
    long_share: float = 7 / 8  # of a long prompt, in the longest that is served


QUICK: Final = Sizes(
    rounds=3,
    streams=12,
    num_requests=20,
    num_stress=5,
    num_probes=3,
    stream_tokens=160,
    num_long=2,
    long_share=1 / 2,
)


@dataclass(frozen=True)
class Pace:
    """What things take here: first tokens of all streams, a step of them, a long prompt alone."""

    start_s: float
    decode_s: float
    prefill_s: float


@dataclass(frozen=True)
class LabSetup:
    """`servers` serve `model` with at most `max_model_len` tokens; files of a lab go into `folder`."""

    servers: Servers
    model: str
    folder: Path
    solution: str = "ref"
    sizes: Sizes = Sizes()
    max_model_len: int = 4096
    itl_slo_s: float | None = None
    options: LoadOptions = field(default_factory=lambda: LoadOptions(ignore_eos=True))
    seed: int = 0
    may_hit: bool = False  # prompts may be found in a prefix cache, because the lab is about it
    send_load: SendLoad = field(default=lambda *given: asyncio.run(run_load(*given)))

    @property
    def long_tokens(self) -> int:
        """The length of a long prompt."""
        return round(self.max_model_len * self.sizes.long_share)

    @property
    def whole(self) -> Variant:
        """Chunked prefill off: the budget must hold the longest prompt."""
        budget = str(self.max_model_len)
        return Variant("off", ("--no-enable-chunked-prefill", "--max-num-batched-tokens", budget))

    def chunked(self, budget: int) -> Variant:
        """Chunked prefill on, with a token budget."""
        flags = ("--enable-chunked-prefill", "--max-num-batched-tokens", str(budget))
        return Variant(str(budget), flags)

    def usable(self, variants: Sequence[Variant]) -> tuple[list[Variant], list[str]]:
        """The variants that can run, and the others: a server that is not ours takes no flags."""
        if self.servers.is_own:
            return list(variants), []
        skipped = [f"{each.name} ({' '.join(each.flags)})" for each in variants if each.flags]
        return [Variant("this server")], [f"{each}: needs its own server" for each in skipped]

    def prompt(self, num_tokens: int, seed: int) -> str | tuple[int, ...]:
        """A prompt of random tokens; for a server that is not ours, a text of about as many words."""
        draw = random.Random(f"{self.seed} {seed}")
        ids = tuple(draw.randrange(*_TOKEN_IDS) for _ in range(num_tokens))
        return ids if self.servers.is_own else " ".join(map(str, ids[: num_tokens // 3 + 1]))

    def itl_slo(self, pace: Pace) -> float:
        """The SLO of ITL p99 that was asked for, or a part of a long prompt's prefill."""
        return self.itl_slo_s or _SLO_SHARE * pace.prefill_s

    def request(
        self, num_tokens: int, max_tokens: int, kind: str, arrival_s: float, seed: int
    ) -> LoadRequest:
        """A request whose prompt shares no beginning with another seed's."""
        return LoadRequest(self.prompt(num_tokens, seed), num_tokens, max_tokens, kind, max(0.0, arrival_s))

    def send(
        self, variant: Variant, requests: Sequence[LoadRequest], options: LoadOptions | None = None
    ) -> LoadRun:
        """One run. Raises UserError if it shows nothing: a request failed, or prompts were in a cache."""
        url = self.servers.url(variant)
        run = self.send_load(url, self.model, requests, options or self.options)
        if run.failed:
            first = run.failed[0]
            raise UserError(
                f"{len(run.failed)} of {len(run.records)} requests failed on {variant.name}: {first.error}"
            )
        cached = sum(each.usage.cached_tokens or 0 for each in run.records if each.usage)
        if cached > _MOST_CACHED * sum(each.num_prompt_tokens for each in run.records) and not self.may_hit:
            raise UserError(
                f"{cached:,} prompt tokens were in the prefix cache of {variant.name}, so they cost no time: "
                "restart the server, or choose another --seed"
            )
        return run

    def measure(
        self,
        variants: Sequence[Variant],
        workload: Workload,
        rounds: int | None = None,
        options: LoadOptions | None = None,
    ) -> Runs:
        """Every variant once a round, each second round in reverse order; the warm-up is not returned."""
        runs: dict[str, list[LoadRun]] = {variant.name: [] for variant in variants}
        rounds = rounds or self.sizes.rounds
        turns, remaining = interleave([*reversed(variants)], rounds, warm_ups=1), Remaining(1 + rounds)
        for number, turns_of_round in groupby(turns, itemgetter(0)):
            for _, variant in turns_of_round:
                run = self.send(variant, workload(number), options)
                if number >= 0:
                    runs[variant.name].append(run)
            log(f"  {'warm-up' if number < 0 else f'round {number + 1}'} done: {remaining.done()}")
        return runs

    def pace(self, variant: Variant) -> Pace:
        """The pace of a variant's server: the fastest of some runs, so that no long prompt comes too late."""
        streams = [self.request(16, 32, "stream", 0.0, -100 - number) for number in range(self.sizes.streams)]
        together = [
            [record.timing for record in self.send(variant, streams).records] for _ in range(_PACE_RUNS)
        ]
        alone = [
            self.send(variant, [self.request(self.long_tokens, 1, "long", 0.0, -10 - number)])
            for number in range(_PACE_RUNS)
        ]
        return Pace(
            min(max(timing.ttft_s or 0.0 for timing in each) for each in together),
            min(median(tpot_s(timing) or 0.0 for timing in each) for each in together),
            min(run.records[0].timing.ttft_s or 0.0 for run in alone),
        )


def rows_of(runs: Runs, metrics: Callable[[LoadRun], Metrics]) -> list[Row]:
    """A row for each variant, a sample for each of its runs."""
    return [Row.of_runs(name, map(metrics, each)) for name, each in runs.items()]


def traffic_metrics(run: LoadRun) -> Metrics:
    """TTFT, pooled ITL and output tokens per second of all requests of a run."""
    return latencies(timings(run.records)) | {
        "total_s": run.total_s,
        "output_tokens_per_s": sum(len(each.token_s) for each in run.records) / run.total_s,
    }
