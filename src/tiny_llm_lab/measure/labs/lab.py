"""The labs: servers and sizes, requests that suit the machine's pace, and a lab as data."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.latency import latencies
from tiny_llm_lab.measure.bench.report import Column, Metrics, Row, Section
from tiny_llm_lab.measure.bench.run import decoding
from tiny_llm_lab.measure.labs.result import Finding, LabResult, bar_panels
from tiny_llm_lab.measure.labs.server import Servers, Variant
from tiny_llm_lab.measure.load.client import LoadOptions, LoadRun, run_load, timings
from tiny_llm_lab.measure.traffic.request import LengthKind, LoadRequest, draw_requests, gamma_gaps
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
    device: str | None = None
    dtype: str | None = None
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
        num, seeds = self.sizes.streams, count(-100, -1)  # no prompt twice: as text it fills a block
        together = [
            self.send(variant, [self.request(16, 32, "stream", 0.0, next(seeds)) for _ in range(num)]).records
            for _ in range(_PACE_RUNS)
        ]
        alone = [
            self.send(variant, [self.request(self.long_tokens, 1, "long", 0.0, -10 - number)])
            for number in range(_PACE_RUNS)
        ]
        return Pace(
            min(max(timing.ttft_s or 0.0 for timing in timings(each)) for each in together),
            min(median(tpot_s(timing) or 0.0 for timing in timings(each)) for each in together),
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


_STREAM_PROMPT: Final = 16
_LONG_MAX_TOKENS: Final = 4
_ROUND: Final = 10_000  # seeds of a round
LOAD: Final = 0.5  # of what the machine could compute, for traffic
_BETWEEN: Final = 0.12  # of the streams' tokens, that come before each long prompt


def contention(setup: LabSetup, pace: Pace, num_long: int, number: int) -> list[LoadRequest]:
    """Streams that all decode, and long prompts that come while they do."""
    sizes, seed = setup.sizes, _ROUND * (number + 1)
    decode_s = sizes.stream_tokens * pace.decode_s
    requests = [
        setup.request(_STREAM_PROMPT, sizes.stream_tokens, "stream", 0.0, seed + each)
        for each in range(sizes.streams)
    ]
    for each in range(num_long):
        at_s = 2 * pace.start_s + each * pace.prefill_s + _BETWEEN * (each + 1) * decode_s
        seed_of_long = seed + sizes.streams + each
        requests.append(setup.request(setup.long_tokens, _LONG_MAX_TOKENS, "long", at_s, seed_of_long))
    return requests


def overlap_problem(runs: Sequence[LoadRun], share: float = 0.8) -> str | None:
    """Why long prompts did not meet decodes: `share` of them must, each with `share` of the streams."""
    streams = [[each.token_s for each in run.of_kind("stream")] for run in runs]
    meetings = [
        len(decoding(each, long.send_s, long.token_s[0])) / len(each)
        for run, each in zip(runs, streams, strict=True)
        for long in run.of_kind("long")
    ]
    num_met = sum(meeting >= share for meeting in meetings)
    if num_met >= share * len(meetings):
        return None
    return (
        f"only {num_met} of {len(meetings)} long prompts were served while {share:.0%} of the streams were "
        "decoding: run it again on a quieter machine"
    )


def require_gaps(runs: Sequence[LoadRun]) -> None:
    """Raise UserError if the client has seen no gaps, because it read all tokens of an answer at once.

    That counts for each stream. In a run without streams some answers are short, so it counts for all.
    """
    num = 0
    for run in runs:
        streams = [each.is_read_at_once for each in run.of_kind("stream")]
        answers = [each.is_read_at_once for each in run.completed if len(each.token_s) > 1]
        num += any(streams) if streams else all(answers) and bool(answers)
    if num:
        message = f"in {num} of {len(runs)} rounds all tokens of an answer were read at once"
        raise UserError(f"{message}: run it again on a quieter machine, or without a proxy in between")


def met_share(run: LoadRun, kind: str = "") -> float:
    """The share of the prompts, or of those of a kind, during whose prefill another request was decoding."""
    done = run.completed
    tokens = [each.token_s for each in done]
    own = [idx for idx, each in enumerate(done) if each.request.kind == kind or not kind]
    met = [
        any(
            other != idx and len(tokens[other]) > 1
            for other in decoding(tokens, tokens[idx][0], done[idx].send_s)
        )
        for idx in own
    ]
    return sum(met) / max(1, len(met))


def meeting_problem(runs: Sequence[LoadRun], kind: str = "", share: float = 0.5) -> str | None:
    """Why a run of traffic says nothing about chunks: too few prefills met decodes."""
    shares = [met_share(run, kind) for run in runs]
    if min(shares) >= share:
        return None
    return (
        f"in a run only {min(shares):.0%} of the {kind + ' ' if kind else ''}prompts were computed while "
        f"another request was decoding, and {share:.0%} should be: run it again on a quieter machine"
    )


def traffic(setup: LabSetup, kinds: Sequence[LengthKind], rate: float, number: int) -> list[LoadRequest]:
    """Poisson arrivals at `rate` a second with lengths of `kinds`.

    Every round has the same lengths and arrivals, and other tokens.
    """
    count, seed = setup.sizes.num_requests, _ROUND * (number + 1)
    drawn = draw_requests(count, rate, 1.0, kinds, setup.seed, setup.max_model_len - 1)
    return [
        setup.request(each.prompt_len, max(2, each.max_tokens), "short", each.arrival_s, seed + place)
        for place, each in enumerate(drawn)
    ]


def rate_for(setup: LabSetup, pace: Pace, kinds: Sequence[LengthKind], load: float = LOAD) -> float:
    """Requests a second that keep the machine busy for `load` of the time."""
    token_s, output_token_s = pace.prefill_s / setup.long_tokens, pace.decode_s / setup.sizes.streams
    each_s = (kind.prompt_median * token_s + kind.output_median * output_token_s for kind in kinds)
    return load / sum(kind.share * work_s for kind, work_s in zip(kinds, each_s, strict=True))


def mixed(setup: LabSetup, rate: float, number: int) -> list[LoadRequest]:
    """A fifth long prompts with short answers, four fifths short prompts with long ones, shuffled."""
    count, longs = setup.sizes.num_requests, setup.sizes.num_requests // 5
    kinds = ["long"] * longs + ["short"] * (count - longs)
    draw = random.Random(setup.seed)
    draw.shuffle(kinds)
    gaps = gamma_gaps(draw, 1.0)
    shapes = mixed_shapes(setup)
    requests, now = [], 0.0
    for idx, kind in enumerate(kinds):
        requests.append(setup.request(*shapes[kind], kind, now, _ROUND * (number + 1) + idx))
        now += next(gaps) / rate
    return requests


def mixed_shapes(setup: LabSetup) -> dict[str, tuple[int, int]]:
    """Tokens of prompt and answer by kind; smaller where a long request would not fit the model."""
    return {"long": (min(3000, setup.max_model_len - 64), 64), "short": (50, 128)}


def mixed_kinds(setup: LabSetup) -> tuple[LengthKind, ...]:
    """The same as `mixed`, as lengths that traffic and rates are made from."""
    shapes, shares = mixed_shapes(setup), {"long": 0.2, "short": 0.8}
    return tuple(LengthKind(shares[kind], shape[0], 0.0, shape[1], 0.0) for kind, shape in shapes.items())


BUDGET: Final = 512
_NO_PACE: Final = Pace(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Measured:
    """The runs of a lab, with a row for each variant; `problem` says why they say nothing."""

    setup: LabSetup
    pace: Pace
    runs: Runs
    rows: Sequence[Row]
    problem: str | None


def off_and_chunked(setup: LabSetup) -> Sequence[Variant]:
    """Without chunks, and with a budget of BUDGET."""
    return [setup.whole, setup.chunked(BUDGET)]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A question, and how it is answered by running requests on variants in turns."""

    name: str
    question: str
    columns: Sequence[Column]
    title: str  # with fields of Sizes, long_tokens and `facts` in braces, as in `notes`
    requests: Callable[[LabSetup, Pace, int], Sequence[LoadRequest]]  # of a round
    metrics: Callable[[LoadRun], Metrics]
    finding: Callable[[Measured], Finding]
    variants: Callable[[LabSetup], Sequence[Variant]] = off_and_chunked
    paced: Callable[[LabSetup, Pace], Sequence[Variant]] = lambda setup, pace: ()  # more, for this pace
    has_pace: bool = True
    may_hit: bool = False  # its prompts share beginnings
    rounds: Callable[[Sizes], int] = attrgetter("rounds")
    options: Callable[[LoadOptions], LoadOptions] = replace
    problem: Callable[[Sequence[LoadRun]], str | None] = lambda runs: None
    notes: Sequence[str] = ()
    facts: Callable[[LabSetup, Pace], Mapping[str, object]] = lambda setup, pace: {}
    data: Callable[[Measured], Mapping[str, Any]] = lambda measured: {}
    panels: Sequence[tuple[str, str, float, str]] = ()  # title, key, scale and unit of bars
    draw: Callable[[Measured, Figure], None] | None = None  # None: the panels

    def __call__(self, setup: LabSetup) -> LabResult:
        """Measure, and say what follows."""
        setup = replace(setup, may_hit=self.may_hit)
        variants, skipped = setup.usable(self.variants(setup))
        pace = setup.pace(variants[0]) if self.has_pace else _NO_PACE
        variants, skipped = setup.usable([*self.variants(setup), *self.paced(setup, pace)])
        make, options = partial(self.requests, setup, pace), self.options(setup.options)
        runs = setup.measure(variants, make, self.rounds(setup.sizes), options)
        every = [run for each in runs.values() for run in each]
        require_gaps(every)
        problem = self.problem(every)
        result = Measured(setup, pace, runs, rows_of(runs, self.metrics), problem)
        facts = asdict(setup.sizes) | {"long_tokens": setup.long_tokens} | dict(self.facts(setup, pace))
        title, *notes = (each.format(**facts) for each in (self.title, *self.notes))
        section = Section(self.name, title, self.columns, result.rows, (), notes, self.data(result))
        bars = partial(bar_panels, rows=result.rows, panels=self.panels)
        draw = partial(self.draw, result) if self.draw else bars
        finding = self.finding(result)
        if problem and not finding.problem:
            finding = replace(finding, claims=(), problem=problem)
        return LabResult(self.name, self.question, section, finding, draw, skipped)


@dataclass(frozen=True)
class OwnLab:
    """A question that is answered by a program of its own."""

    question: str
    run: Callable[[LabSetup], LabResult]

    def __call__(self, setup: LabSetup) -> LabResult:
        """Measure, and say what follows."""
        return self.run(setup)
