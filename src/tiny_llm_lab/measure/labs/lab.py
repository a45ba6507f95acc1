"""A lab as data: variants of a server, their requests, the metrics of a run, and the conclusion."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.report import Column, Metrics, Row, Section
from tiny_llm_lab.measure.labs.plot import bar_panels
from tiny_llm_lab.measure.labs.result import Finding, LabResult
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.labs.setup import LabSetup, Pace, Runs, Sizes, rows_of
from tiny_llm_lab.measure.labs.workload import starved_problem
from tiny_llm_lab.measure.load.client import LoadOptions
from tiny_llm_lab.measure.load.record import LoadRun
from tiny_llm_lab.measure.traffic.request import LoadRequest

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
        problem = starved_problem(every) or self.problem(every)
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
