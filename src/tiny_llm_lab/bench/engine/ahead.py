"""`ahead`: decode steps that begin before the previous one is read, against steps that wait for it."""

from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.bench.harness import Variant, time_variants
from tiny_llm_lab.bench.report import Ratio, Section, timed_section

from .config import BenchConfig

# In one turn: time can only be gained between two of them.
_STEPS: Final = 16
_NAMES: Final = {False: "each read first", True: "a step ahead"}


def ahead(config: BenchConfig) -> Section:
    """One stream, then all of them, each with both kinds of steps in turn."""
    length = config.context + (config.rounds + 1) * _STEPS + 2
    config.require_room(length, "--context and --rounds")
    seconds: dict[str, tuple[float, ...]] = {}
    for streams in sorted({1, config.streams}):
        engines = {
            f"{name}, {streams} streams": config.decoding_engine(streams, length, async_scheduling=is_ahead)
            for is_ahead, name in _NAMES.items()
        }
        try:
            variants = [Variant(name, partial(_some_steps, engine)) for name, engine in engines.items()]
            seconds |= time_variants(variants, config.rounds)
        finally:
            for engine in engines.values():
                engine.release()
    return section(seconds, config)


def _some_steps(engine: Any) -> None:
    for _ in range(_STEPS):
        engine.step()


def section(seconds: dict[str, tuple[float, ...]], config: BenchConfig) -> Section:
    """Speeds with a step ahead as shares of those without."""
    steps = {name: tuple(value / _STEPS for value in values) for name, values in seconds.items()}
    names = list(steps)
    ratios, saved = [], []
    for usual, faster in zip(names[::2], names[1::2], strict=True):  # the two of one number of streams
        title = f"speed a step ahead / each read first,{usual.partition(',')[2]}"
        ratios.append(Ratio.of(title, steps[usual], steps[faster]))
        saved.append(f"{(median(steps[usual]) - median(steps[faster])) * 1e3:.2f} ms")
    title = f"ahead: decode steps at context {config.context}, {_STEPS} in a turn"
    return timed_section("ahead", title, steps, ratios, [f"Saved in a step: {', '.join(saved)}."])
