"""`chunk-position`: what a chunk costs deep in its prompt, and how well a step's time is foretold."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from tiny_llm_lab.metrics import percentile

from .calibration import calibration_json, grid, held_out, samples_of
from .report import Report
from .setting import Setting
from .step_runner import Step, StepRunner, chunk, work_of
from .turns import TIME_COLUMNS, Seconds, Side, ratio, take_turns, times_row

_DEPTHS: Final = (0, 1024, 2048, 4096)
_MAX_LEN: Final = 2560
_MAX_CHUNK: Final = 512
_CALIBRATION_ROUNDS: Final = 3


def depths(limit: int, new: int) -> list[int]:
    """Where chunks of `new` tokens begin; the last one ends with the longest request, if need be."""
    return sorted({max(0, min(depth, limit - new)) for depth in _DEPTHS})


def chunk_position(setting: Setting) -> Report:
    """Chunks at several depths in turns; then a calibration with the steps that it has to foretell."""
    llm, limit = setting.llm, setting.limit
    at = depths(limit, setting.chunk)
    known, unknown = _steps(limit, setting.seed)
    chunks = [chunk(stored, setting.chunk) for stored in at]
    runner = StepRunner(llm, setting.model, [*known, *unknown, *chunks], setting.seed)
    sides = [Side(f"at {part.stored}", partial(runner.run, (part,))) for (part,) in chunks]
    seconds = take_turns(sides, setting.rounds)
    sides = [Side(str(i), partial(runner.run, step)) for i, step in enumerate([*known, *unknown])]
    times = list(take_turns(sides, _CALIBRATION_ROUNDS).values())
    runner.release()
    samples = samples_of(llm, known, [median(values) for values in times[: len(known)]])
    # Corrections off: what is asked is how good the fit is, not how fast it is mended.
    model = llm.StepTimeModel(samples, newest=0.0)
    errors = foretold(model, unknown, times[len(known) :])
    return chunk_report(seconds, setting.chunk, model, len(known), errors)


def foretold(
    model: Any, steps: Sequence[Step], times: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]]:
    """Relative errors against the median of a step's runs, and against every single run."""
    of_medians, of_runs = [], []
    for step, seconds in zip(steps, times, strict=True):
        predicted_s = model.predict(*work_of(step))
        of_medians.append(abs(predicted_s / median(seconds) - 1))
        of_runs += [abs(predicted_s / took - 1) for took in seconds]
    return of_medians, of_runs


def chunk_report(
    seconds: Seconds, new: int, model: Any, num_samples: int, errors: tuple[list[float], list[float]]
) -> Report:
    """The times at each depth, each depth against the first, and the model's errors."""
    first, *others = seconds
    percentiles = [{f"p{p}": percentile(values, p) for p in (50, 90)} for values in errors]
    said = [
        f"{what}: p50 {found['p50']:.1%}, p90 {found['p90']:.1%}"
        for what, found in zip(("medians", "single runs"), percentiles, strict=True)
    ]
    return Report(
        "chunk-position",
        f"a chunk of {new} tokens behind so many of its prompt",
        TIME_COLUMNS,
        [times_row(name, values) for name, values in seconds.items()],
        [ratio(f"{name} / {first}", seconds[name], seconds[first]) for name in others],
        [
            f"Step-time model, fitted to {num_samples} steps, relative error on {len(errors[0])} others; "
            + "; ".join(said)
            + "."
        ],
        {
            "seconds": {name: list(values) for name, values in seconds.items()},
            "calibration": calibration_json(model),
            "error": {"of_medians": percentiles[0], "of_runs": percentiles[1]},
        },
    )


def _steps(limit: int, seed: int) -> tuple[list[Step], list[Step]]:
    max_len = min(limit, _MAX_LEN)
    return grid(max_len, _MAX_CHUNK), held_out(max_len, _MAX_CHUNK, seed)
