"""A robust fit of step times. Not exported by `tiny_llm_lab.types`, which must import without numpy."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from tiny_llm_lab.types.scheduling.step_time import StepCoefficients, StepSample

_ROUNDS: Final = 20
_MET: Final = 1e-3  # smaller relative errors all count the same
_DEPENDENT: Final = 1e-6  # columns with a smaller ratio of singular values are linearly dependent
_ROUNDING: Final = 1e-20  # of squared relative errors

_Array = npt.NDArray[np.float64]


def fit_step_times(samples: Sequence[StepSample]) -> StepCoefficients:
    """Returns (a, b, c, d) >= 0: a + b * num_tokens + c * attention_tokens + d * kv_tokens_read seconds.

    They minimise the sum of relative errors, so that a few samples that are wrong by any factor hardly
    matter. If all samples are decodes, attention_tokens equals kv_tokens_read; then c is 0 and d takes all.
    """
    # Divided by its measured time, every sample has the target 1, and its error is relative. Plain least
    # squares would follow a single outlier. Dividing each square by the previous round's error leaves the sum
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
    """Returns the x >= 0 with the least sum of weights * (rows @ x - 1)^2.

    Four columns have few enough sets of nonzero entries to try all of them. If sets fit equally well, the
    smaller set wins, and if they are equally small, the set with the earlier columns.
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
