"""A robust fit of step times. Not part of `tiny_llm_lab.types`: that package must import without numpy."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from tiny_llm_lab.types.scheduling.step_time import StepCoefficients, StepSample

_ROUNDS: Final = 20
_MET: Final = 1e-3  # relative error below which errors are not told apart
_DEPENDENT: Final = 1e-6  # columns with a smaller ratio of singular values are linearly dependent
_ROUNDING: Final = 1e-20  # of squared relative errors

_Array = npt.NDArray[np.float64]


def fit_step_times(samples: Sequence[StepSample]) -> StepCoefficients:
    """Nonnegative (a, b, c, d): a + b * num_tokens + c * attention_tokens + d * kv_tokens_read seconds.

    They minimise the sum of relative errors, so that a few samples that are wrong by any factor hardly
    matter. In decodes alone attention_tokens equals kv_tokens_read: c is 0 then, and d takes all.
    """
    # Divided by its measured time, every sample has the target 1, and its error is relative. Least squares
    # alone would follow one wild sample: dividing each square by the error of the round before leaves the sum
    # of plain errors. Of equal columns the first is used, so kv_tokens_read comes before attention_tokens.
    rows = np.array(
        [(1, each.num_tokens, each.kv_tokens_read, each.attention_tokens) for each in samples], dtype=float
    )
    rows /= np.array([[each.seconds] for each in samples])
    scales = rows.max(axis=0)
    scales[scales == 0] = 1
    rows /= scales
    weights = np.ones(len(rows))
    for _ in range(_ROUNDS):
        best = _nonnegative_least_squares(rows, weights)
        weights = 1 / np.maximum(np.abs(rows @ best - 1), _MET)
    a, b, d, c = (best / scales).tolist()
    return a, b, c, d


def _nonnegative_least_squares(rows: _Array, weights: _Array) -> _Array:
    """x >= 0 with the least sum of weights * (rows @ x - 1)^2.

    Four columns have few enough sets of nonzero entries to try them all. Of sets that fit equally well
    the smaller is taken, and of two as small the one with the earlier columns.
    """
    target = np.sqrt(weights)
    columns, size = rows * target[:, None], rows.shape[1]
    best, least = np.zeros(size), float("inf")
    for kept in (list(each) for count in range(1, size + 1) for each in combinations(range(size), count)):
        solved = np.linalg.lstsq(columns[:, kept], target, rcond=_DEPENDENT)[0]
        if solved.min() < 0:
            continue
        error = float(np.square(columns[:, kept] @ solved - target).sum())
        if error < least * (1 - 1e-12) - _ROUNDING * weights.sum():
            best, least = np.zeros(size), error
            best[kept] = solved
    return best
