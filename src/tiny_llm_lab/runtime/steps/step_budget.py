"""How many tokens a step may have, so that nobody waits long for the next token: timed once on a device."""

import contextlib
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Sequence
from dataclasses import astuple
from operator import mul, sub
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.solution import Serving
from tiny_llm_lab.runtime.steps.calibration import calibrate
from tiny_llm_lab.runtime.steps.runner import StepGrid, chunk, work_of
from tiny_llm_lab.types import Checkpoint, Clock, Model, StepSample, UserError
from tiny_llm_lab.types.scheduling.step_time_fit import fit_step_times

UNKNOWN_BUDGET: Final = 512  # for a device that was not timed
_BUDGETS: Final = (2048, 1024, 512, 256, 128)
_MOST_S: Final = 0.1
# At most a second, less on a fast GPU; a slow one has no time for the largest.
_STEPS: Final = StepGrid(stored=(0, 512), decodes=(1,), chunks=(32, 128, 512, 1024))
# Tokens before the chunk that has to fit: half of the longest request that is served without flags.
_STORED: Final = 2048


def step_budget(llm: Serving, model: Model, checkpoint: Checkpoint, clock: Clock = time.perf_counter) -> int:
    """The largest budget whose step of one chunk is predicted to fit 100 ms, and UNKNOWN_BUDGET if unknown.

    Kept in the cache folder for this device, version of MLX and model. What cannot be read or written there
    costs another calibration.
    """
    path = _path(checkpoint)
    with contextlib.suppress(OSError, ValueError):
        if (kept := json.loads(path.read_text(encoding="utf-8"))) in _BUDGETS:
            return int(kept)
    try:
        samples = calibrate(model, llm, _STEPS.steps(), rounds=2, limit_s=1.0, clock=clock)
    except UserError:  # no room for the steps
        return UNKNOWN_BUDGET
    budget = fitting_budget(samples)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(budget), encoding="utf-8")  # a part of a budget is not a budget
    return budget


def fitting_budget(samples: Sequence[StepSample]) -> int:
    """The largest of the budgets that the measured steps say fits; the smallest if none does.

    Larger chunks may have faster kernels. So a step takes what a fit of all of them says, or less: as much
    longer than the largest that is no larger.
    """
    fixed, *factors = fit_step_times(samples)

    def predicted(budget: int) -> float:
        work = work_of(chunk(_STORED, budget))
        near = max((each for each in samples if each.num_tokens <= budget), key=astuple)
        bases = (fixed, (0, 0, 0)), (near.seconds, astuple(near))
        return min(base + sum(map(mul, factors, map(sub, work, done))) for base, done in bases)

    return next((budget for budget in _BUDGETS if predicted(budget) <= _MOST_S), _BUDGETS[-1])


def _path(checkpoint: Checkpoint) -> Path:
    device = mx.device_info()["device_name"], importlib.metadata.version("mlx")
    weights = sum(weight.nbytes for weight in checkpoint.weights.values())
    key = repr((device, checkpoint.config, str(checkpoint.dtype), weights))
    return cache_folder() / "steps" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
