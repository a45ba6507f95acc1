"""How long a step of the engine will take, before it runs."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Where "small" may end, and below how many samples a regime is not fitted on its own.
_SPLITS = (16, 32, 64, 128, 256, 512, 1024)
_FEWEST = 6
# Rounds of reweighting, and the relative error below which a sample is taken to be met.
_ROUNDS, _MET = 20, 1e-3
# How far one measurement may pull the correction or the margin, and how many steps are remembered.
_PULL, _WINDOW = 2.0, 256

_Coefficients = tuple[float, float, float, float]


@dataclass(frozen=True)
class StepSample:
    """One measured step: its tokens, its work on stored tokens as in `predict`, its seconds."""

    num_tokens: int
    num_attended: int
    num_stored: int
    seconds: float


@dataclass(frozen=True)
class StepTimeError:
    """Relative errors |predicted - measured| / measured: how many, and nearest-rank percentiles."""

    count: int
    p50: float
    p90: float


def context_work(num_computed: int, num_new: int) -> int:
    """How many stored tokens `num_new` tokens behind `num_computed` attend to, summed over them.

    Every token sees what is before it and itself: (10, 1) -> 11, (10, 3) -> 11 + 12 + 13 = 36.
    """
    return num_new * num_computed + num_new * (num_new + 1) // 2


class StepTimeModel:
    """Predicts the seconds of a step: a + b * num_tokens + c * num_attended + d * num_stored.

    There are two regimes with an (a, b, c, d) each. In a small step (up to `split_tokens` tokens) the time
    goes into reading the weights, which is paid once however few tokens there are; in a large one into
    arithmetic, paid per token. A correction per regime is learnt while running.
    """

    def __init__(
        self, samples: Sequence[StepSample], split_tokens: int | None = None, newest: float = 0.1
    ) -> None:
        """Fit `small` and `large`, (a, b, c, d) each, to at least 3 measured samples.

        No coefficient is negative, errors count relative to the measured time, and a few samples that
        are wrong by any factor hardly matter. A regime with fewer than 6 samples takes the fit of all of
        them. `split_tokens` None: the power of two from 16 to 1,024 with the smallest total error.
        `newest` is the weight of the newest step in the corrections (0 = never correct). Raises
        ValueError for too few samples, a time that is not above 0, or a weight outside 0 to 1.
        """
        if len(samples) < 3 or any(sample.seconds <= 0 for sample in samples) or not 0 <= newest <= 1:
            raise ValueError("a step-time model needs 3 samples of more than 0 s and a weight from 0 to 1")
        self.newest = newest
        self.small_correction = self.large_correction = 1.0
        self._errors: deque[float] = deque(maxlen=_WINDOW)
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        whole = _robust_fit(samples)
        splits = _SPLITS if split_tokens is None else (split_tokens,)
        fits = [(split, *_two_fits(samples, split, whole)) for split in splits]
        self.split_tokens, self.small, self.large = min(fits, key=lambda fit: _total_error(samples, *fit))
        self._fit_errors = [
            self._compare(each.num_tokens, each.num_attended, each.num_stored, each.seconds)
            for each in samples
        ]

    def predict(self, num_tokens: int, num_attended: int, num_stored: int = 0) -> float:
        """Seconds of a step, the correction of its regime included.

        `num_attended`: stored tokens that the step's tokens see, summed over its tokens (`context_work`).
        `num_stored`: the same summed over its requests; each is read once, however many tokens look. Never
        falls as one of the three grows inside a regime, and a large step never takes less than a small one
        of `split_tokens` tokens that only reads as much.
        """
        if num_tokens <= self.split_tokens:
            return self.small_correction * _seconds(self.small, num_tokens, num_attended, num_stored)
        least_s = self.small_correction * _seconds(self.small, self.split_tokens, 0, num_stored)
        return max(
            least_s, self.large_correction * _seconds(self.large, num_tokens, num_attended, num_stored)
        )

    def record(self, num_tokens: int, num_attended: int, num_stored: int, seconds: float) -> None:
        """Learn from a step that took `seconds`: `small_correction` or `large_correction` moves.

        The correction becomes (1 - newest) times its value plus `newest` times measured / fitted seconds.
        One measurement counts at most as twice and at least as half the correction so far: a hiccup must
        not look like a new machine. How wrong the prediction before this step was is remembered for `error`
        and `margin`. Raises ValueError when `seconds` is not above 0.
        """
        if seconds <= 0:
            raise ValueError(f"a step cannot take {seconds} s")
        self._errors.append(self._compare(num_tokens, num_attended, num_stored, seconds))
        is_small = num_tokens <= self.split_tokens
        fitted_s = _seconds(self.small if is_small else self.large, num_tokens, num_attended, num_stored)
        correction = self.small_correction if is_small else self.large_correction
        ratio = seconds / fitted_s if fitted_s > 0 else correction
        ratio = min(max(ratio, correction / _PULL), correction * _PULL)
        correction += self.newest * (ratio - correction)
        if is_small:
            self.small_correction = correction
        else:
            self.large_correction = correction

    def error(self) -> StepTimeError:
        """How wrong the predictions of the last 256 steps were, or the fit while there are none."""
        errors = self._errors or self._fit_errors
        return StepTimeError(len(errors), _nearest_rank(errors, 0.5), _nearest_rank(errors, 0.9))

    def margin(self, share: float) -> float:
        """What to multiply predictions by, so that a `share` (0 to 1) of the steps is inside: 1 to 2.

        The nearest-rank percentile of measured / predicted seconds of the last 256 steps, the fitted
        samples counted as the first ones. A step of decodes alone (num_attended == num_stored: one token
        each) does not count: nobody chooses how long it takes. A quiet phase cannot push the margin
        below 1, nor hiccups above 2.
        """
        wanted = _nearest_rank(self._ratios, share) if self._ratios else 1.0
        return min(max(wanted, 1.0), _PULL)

    def _compare(self, num_tokens: int, num_attended: int, num_stored: int, seconds: float) -> float:
        """The relative error of the prediction, after the ratio is remembered."""
        predicted_s = self.predict(num_tokens, num_attended, num_stored)
        if num_attended > num_stored and predicted_s > 0:
            self._ratios.append(seconds / predicted_s)
        return abs(predicted_s / seconds - 1)


def _nearest_rank(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def _seconds(fit: _Coefficients, num_tokens: int, num_attended: int, num_stored: int) -> float:
    return fit[0] + fit[1] * num_tokens + fit[2] * num_attended + fit[3] * num_stored


def _two_fits(
    samples: Sequence[StepSample], split: int, whole: _Coefficients
) -> tuple[_Coefficients, _Coefficients]:
    small = [sample for sample in samples if sample.num_tokens <= split]
    large = [sample for sample in samples if sample.num_tokens > split]
    fits = [_robust_fit(part) if len(part) >= _FEWEST else whole for part in (small, large)]
    return fits[0], fits[1]


def _total_error(
    samples: Sequence[StepSample], split: int, small: _Coefficients, large: _Coefficients
) -> float:
    return sum(
        abs(_seconds(fit, each.num_tokens, each.num_attended, each.num_stored) / each.seconds - 1)
        for each in samples
        for fit in [small if each.num_tokens <= split else large]
    )


def _robust_fit(samples: Sequence[StepSample]) -> _Coefficients:
    """The nonnegative coefficients with the least sum of relative errors, by reweighted least squares.

    Squares alone would follow one wild sample. Dividing each square by the error that it had in the round
    before leaves the sum of plain errors, which does not.
    """
    # Divided by the measured time, every sample wants to reach 1. Decodes alone cannot tell what is stored
    # from what is attended to: of two equal fits the one that comes first, on what is stored, is kept.
    rows = [
        [value / each.seconds for value in (1, each.num_tokens, each.num_stored, each.num_attended)]
        for each in samples
    ]
    scales = [max(column) or 1.0 for column in zip(*rows, strict=True)]
    rows = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    weights = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        best = _nonnegative_least_squares(rows, weights)
        errors = [abs(sum(x * value for x, value in zip(best, row, strict=True)) - 1) for row in rows]
        weights = [1 / max(error, _MET) for error in errors]
    a, b, d, c = (x / scale for x, scale in zip(best, scales, strict=True))
    return a, b, c, d


def _nonnegative_least_squares(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """x >= 0 with the least sum of weight * (row . x - 1)^2, by trying which entries are not 0."""
    size = len(rows[0])
    weighed = [[weight * value for value in row] for row, weight in zip(rows, weights, strict=True)]
    gram = [
        [sum(one[i] * other[j] for one, other in zip(weighed, rows, strict=True)) for j in range(size)]
        for i in range(size)
    ]
    wanted = [sum(column) for column in zip(*weighed, strict=True)]
    best, least = [0.0] * size, math.inf
    for kept in ([i for i in range(size) if choice >> i & 1] for choice in range(1, 2**size)):
        solved = _solve([[gram[i][j] for j in kept] for i in kept], [wanted[i] for i in kept])
        if solved is None or min(solved) < 0:
            continue
        # The squared error, less what is the same for every candidate.
        error = -sum(value * wanted[i] for i, value in zip(kept, solved, strict=True))
        if error < least:
            at = dict(zip(kept, solved, strict=True))
            best, least = [at.get(i, 0.0) for i in range(size)], error
    return best


def _solve(matrix: list[list[float]], wanted: list[float]) -> list[float] | None:
    """x with matrix . x = wanted, by elimination; None when the matrix is (nearly) singular.

    The matrix is positive semidefinite, so that the diagonal serves as pivots.
    """
    size = len(wanted)
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    for i in range(size):
        if rows[i][i] <= 1e-12 * matrix[i][i]:
            return None
        for other in range(size):
            if other != i:
                factor = rows[other][i] / rows[i][i]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
