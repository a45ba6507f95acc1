"""`two-processes`: what two engines on one machine cost each other, beyond the half that each can have."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, cast

import mlx.core as mx

from tiny_llm_lab.bench.fresh import FreshProcess
from tiny_llm_lab.bench.report import Aim, Column, Ratio, Row, Section
from tiny_llm_lab.bench.spec import Spec
from tiny_llm_lab.commands.options import load
from tiny_llm_lab.course.task_names import TaskNames
from tiny_llm_lab.interleave import interleave
from tiny_llm_lab.steps.runner import StepRunner
from tiny_llm_lab.steps.shapes import Step, chunk, decodes
from tiny_llm_lab.types import Clock

from .config import BLOCK_SIZE, BenchConfig

# Of half of what an engine computes alone.
_AIM: Final = Aim(at_least=0.8)
# A turn holds hundreds of the slices that an operating system cuts time into.
_TURN_S: Final = 0.5
_COLUMNS: Final = (Column("steps_per_s", "steps/s (min-max)", has_spread=True),)


@dataclass(frozen=True)
class Turn:
    """Repeat `step`, one of `steps`, for `seconds`, in a process that keeps the model of `spec`."""

    spec: Spec
    steps: tuple[Step, ...]
    step: Step
    seconds: float = _TURN_S


Rate = float  # steps a second
Begin = Callable[[Turn], Callable[[], Rate]]  # in one process; what it returns waits for the rate


def two_processes(config: BenchConfig) -> Section:
    """Steps a second of an engine alone, and of each of two at the same time."""
    config.require_room(max(config.context + 1, config.chunk), "--context or --chunk")
    steps = {"decode": decodes(1, config.context), "chunk": chunk(0, config.chunk)}
    with FreshProcess(config.spec.threads) as first, FreshProcess(config.spec.threads) as second:
        processes = [cast(Begin, functools.partial(each.begin, rate)) for each in (first, second)]
        turns = {name: Turn(config.spec, tuple(steps.values()), step) for name, step in steps.items()}
        return section(turns, processes, config)


def section(turns: dict[str, Turn], processes: Sequence[Begin], config: BenchConfig) -> Section:
    """Each round has every kind of step in one process alone, by turns, and then in both."""
    rows, ratios = list[Row](), list[Ratio | None]()
    rates: dict[str, list[tuple[Rate, Rate, Rate]]] = {name: [] for name in turns}
    for number, name in interleave(list(turns), config.rounds, warm_ups=1):
        order = (0, 1) if number % 2 else (1, 0)
        alone = processes[order[0]](turns[name])()
        waits = {place: processes[place](turns[name]) for place in order}
        both = {place: wait() for place, wait in waits.items()}
        if number >= 0:
            rates[name].append((alone, both[0], both[1]))
    for name, each in rates.items():
        samples = [list(column) for column in zip(*each, strict=True)]
        kinds = ("alone", "one of two", "the other")
        rows += [Row(f"{name}, {who}", {"steps_per_s": own}) for who, own in zip(kinds, samples, strict=True)]
        half = [value / 2 for value in samples[0]]
        for who, own in zip(kinds[1:], samples[1:], strict=True):
            ratios.append(Ratio.of(f"{name}, {who} / half of alone", own, half, _AIM))
    title = (
        f"two-processes: steps of one decode at context {config.context}, and of a chunk of "
        f"{config.chunk} tokens"
    )
    note = f"Each engine has a process of its own; a turn takes {_TURN_S:g} s. Other programs disturb this."
    return Section("two-processes", title, _COLUMNS, rows, ratios, [note])


def rate(turn: Turn) -> Rate:
    """The steps a second of one turn, in this process; the first call loads the model."""
    return steps_per_s(functools.partial(_runner(turn.spec, turn.steps).run, turn.step), turn.seconds)


def steps_per_s(run: Callable[[], object], seconds: float, clock: Clock = time.perf_counter) -> Rate:
    """Call `run` until `seconds` are over; the step that is then under way counts with all of its time."""
    start_s, count = clock(), 0
    while True:
        run()
        count += 1
        if (took_s := clock() - start_s) >= seconds:
            return count / took_s


@functools.cache
def _runner(spec: Spec, steps: tuple[Step, ...]) -> StepRunner:
    """Never released: its process ends with the experiment."""
    loaded = load(spec.model, spec.solution, spec.device, spec.dtype)
    llm: Any = TaskNames(cast(ModuleType, loaded.solution))
    runner = StepRunner(llm, loaded.model, steps, spec.seed, block_size=BLOCK_SIZE)
    for step in steps:
        runner.run(step)
    mx.synchronize()
    return runner
