"""Predicts how long a step of the engine will take."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from tiny_llm_lab.types import StepCoefficients, StepSample, StepTimeError
from tiny_llm_lab.types.scheduling.step_time_fit import fit_step_times

# Where small steps may end, and how many samples a regime needs to be fitted on its own.
_SPLITS = (16, 32, 64, 128, 256, 512, 1024)
_FEWEST = 6
# How far one measurement may move the correction or the margin, and how many steps are remembered.
_PULL, _WINDOW = 2.0, 256


class StepTimeModel:
    """Predicts the seconds of a step: a + b * num_tokens + c * attention_tokens + d * kv_tokens_read.

    There are two regimes, each with its own (a, b, c, d). A small step (up to `split_tokens` tokens) is
    memory-bound: it reads the weights, which costs the same for any number of tokens. A large step is
    compute-bound: every token costs the same. Each regime has a correction, learned while running.
    """

    def __init__(
        self, samples: Sequence[StepSample], split_tokens: int | None = None, newest: float = 0.1
    ) -> None:
        """Fit `small` and `large`, (a, b, c, d) each, to at least 3 measured samples.

        Each is `fit_step_times` (tiny_llm_lab.types.scheduling.step_time_fit) of the regime's samples, or of
        all samples if the regime has fewer than 6. `split_tokens` None means the power of two from 16 to
        1,024 with the smallest sum of relative errors. `newest` is the weight of the newest step in the
        corrections (0 = never correct). Raises ValueError for too few samples, a time that is not above 0, or
        a weight outside 0 to 1.
        """
        if len(samples) < 3 or any(sample.seconds <= 0 for sample in samples) or not 0 <= newest <= 1:
            raise ValueError("a step-time model needs 3 samples of more than 0 s and a weight from 0 to 1")
        self.newest = newest
        self.small_correction = self.large_correction = 1.0
        self._errors: deque[float] = deque(maxlen=_WINDOW)
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        whole = fit_step_times(samples)
        splits = _SPLITS if split_tokens is None else (split_tokens,)
        fits = [(split, *_two_fits(samples, split, whole)) for split in splits]
        self.split_tokens, self.small, self.large = min(fits, key=lambda fit: _total_error(samples, *fit))
        self._fit_errors = [self._compare(each) for each in samples]

    def predict(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int = 0) -> float:
        """Returns the seconds of a step, corrected for its regime. The counts are as in `StepSample`.

        Inside a regime a larger count never makes the prediction smaller. A large step takes at least as long
        as a small step of `split_tokens` tokens with the same kv_tokens_read and no attention tokens.
        """
        if num_tokens <= self.split_tokens:
            return self.small_correction * _seconds(self.small, num_tokens, attention_tokens, kv_tokens_read)
        least_s = self.small_correction * _seconds(self.small, self.split_tokens, 0, kv_tokens_read)
        large_s = self.large_correction * _seconds(self.large, num_tokens, attention_tokens, kv_tokens_read)
        return max(least_s, large_s)

    def record(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int, seconds: float) -> None:
        """Learn from a step that took `seconds`: update `small_correction` or `large_correction`.

        The correction becomes (1 - newest) times its value plus `newest` times measured / fitted seconds.
        One measurement counts as at most twice and at least half the correction so far, so that a hiccup
        does not look like a slower machine. The error of the prediction before this step is remembered for
        `error` and `margin`. Raises ValueError if `seconds` is not above 0.
        """
        if seconds <= 0:
            raise ValueError(f"a step cannot take {seconds} s")
        step = StepSample(num_tokens, attention_tokens, kv_tokens_read, seconds)
        self._errors.append(self._compare(step))
        is_small = num_tokens <= self.split_tokens
        fit = self.small if is_small else self.large
        fitted_s = _seconds(fit, num_tokens, attention_tokens, kv_tokens_read)
        correction = self.small_correction if is_small else self.large_correction
        ratio = seconds / fitted_s if fitted_s > 0 else correction
        ratio = min(max(ratio, correction / _PULL), correction * _PULL)
        correction += self.newest * (ratio - correction)
        if is_small:
            self.small_correction = correction
        else:
            self.large_correction = correction

    def error(self) -> StepTimeError:
        """Returns the prediction errors of the last 256 steps, or the errors of the fit before any step."""
        errors = self._errors or self._fit_errors
        return StepTimeError(len(errors), _nearest_rank(errors, 0.5), _nearest_rank(errors, 0.9))

    def margin(self, share: float) -> float:
        """Returns the factor, 1 to 2, that makes predictions cover a `share` (0 to 1) of the steps.

        You multiply predictions by it. It is the nearest-rank percentile of measured / predicted seconds over
        the last 256 steps; the fitted samples count as the first steps. A step with only decodes
        (attention_tokens == kv_tokens_read, one token each) does not count, because no budget changes how
        long it takes.
        """
        wanted = _nearest_rank(self._ratios, share) if self._ratios else 1.0
        return min(max(wanted, 1.0), _PULL)

    def _compare(self, step: StepSample) -> float:
        """Remember the ratio, and return the relative error of the prediction."""
        predicted_s = self.predict(step.num_tokens, step.attention_tokens, step.kv_tokens_read)
        if step.attention_tokens > step.kv_tokens_read and predicted_s > 0:
            self._ratios.append(step.seconds / predicted_s)
        return abs(predicted_s / step.seconds - 1)


def _nearest_rank(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def _seconds(fit: StepCoefficients, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
    return fit[0] + fit[1] * num_tokens + fit[2] * attention_tokens + fit[3] * kv_tokens_read


def _two_fits(
    samples: Sequence[StepSample], split: int, whole: StepCoefficients
) -> tuple[StepCoefficients, StepCoefficients]:
    small = [sample for sample in samples if sample.num_tokens <= split]
    large = [sample for sample in samples if sample.num_tokens > split]
    fits = [fit_step_times(part) if len(part) >= _FEWEST else whole for part in (small, large)]
    return fits[0], fits[1]


def _total_error(
    samples: Sequence[StepSample], split: int, small: StepCoefficients, large: StepCoefficients
) -> float:
    return sum(
        abs(_seconds(fit, each.num_tokens, each.attention_tokens, each.kv_tokens_read) / each.seconds - 1)
        for each in samples
        for fit in [small if each.num_tokens <= split else large]
    )
