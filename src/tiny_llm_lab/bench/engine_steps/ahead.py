"""`ahead`: decode steps that begin before the one in front is read, against steps that wait for it."""

from functools import partial
from statistics import median
from typing import Any, Final

from .paged import decoding_engine
from .report import Report
from .setting import Setting
from .turns import TIME_COLUMNS, Seconds, Side, ratio, take_turns, times_row

# In one turn: only between them can anything be gained.
_STEPS: Final = 16
_NAMES: Final = {False: "each read first", True: "a step ahead"}


def ahead(setting: Setting) -> Report:
    """One stream, then all of them, each with both kinds of steps in turn."""
    length = setting.context + (setting.rounds + 1) * _STEPS + 2
    setting.require_room(length, "--context and --rounds")
    seconds: dict[str, tuple[float, ...]] = {}
    for streams in sorted({1, setting.streams}):
        engines = {
            name: decoding_engine(setting, streams, length, async_scheduling=is_ahead)
            for is_ahead, name in _NAMES.items()
        }
        sides = [
            Side(f"{name}, {streams} streams", partial(_some_steps, engine))
            for name, engine in engines.items()
        ]
        try:
            seconds |= take_turns(sides, setting.rounds)
        finally:
            for engine in engines.values():
                engine.release()
    return ahead_report(seconds, setting)


def _some_steps(engine: Any) -> None:
    for _ in range(_STEPS):
        engine.step()


def ahead_report(seconds: Seconds, setting: Setting) -> Report:
    """Speeds with a step ahead as shares of those without."""
    steps = {name: tuple(value / _STEPS for value in values) for name, values in seconds.items()}
    names = list(steps)
    pairs = list(zip(names[::2], names[1::2], strict=True))  # of a number of streams: usual, ahead
    ratios = [
        ratio(f"speed a step ahead / each read first,{usual.partition(',')[2]}", steps[usual], steps[faster])
        for usual, faster in pairs
    ]
    saved = [median(steps[usual]) - median(steps[faster]) for usual, faster in pairs]
    return Report(
        "ahead",
        f"decode steps at context {setting.context}, {_STEPS} in a turn",
        TIME_COLUMNS,
        [times_row(name, values) for name, values in steps.items()],
        ratios,
        ["Saved in a step: " + ", ".join(f"{value * 1e3:.2f} ms" for value in saved) + "."],
        {"seconds": {name: list(values) for name, values in steps.items()}},
    )
