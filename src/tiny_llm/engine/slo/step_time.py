"""Predicts how long a step of the engine will take."""

from collections.abc import Sequence

from tiny_llm_lab.types import StepSample, StepTimeError


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
        raise NotImplementedError("task 3.8.1")

    def predict(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int = 0) -> float:
        """Returns the seconds of a step, corrected for its regime. The counts are as in `StepSample`.

        Inside a regime a larger count never makes the prediction smaller. A large step takes at least as long
        as a small step of `split_tokens` tokens with the same kv_tokens_read and no attention tokens.
        """
        raise NotImplementedError("task 3.8.1")

    def record(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int, seconds: float) -> None:
        """Learn from a step that took `seconds`: update `small_correction` or `large_correction`.

        The correction becomes (1 - newest) times its value plus `newest` times measured / fitted seconds.
        One measurement counts as at most twice and at least half the correction so far, so that a hiccup
        does not look like a slower machine. The error of the prediction before this step is remembered for
        `error` and `margin`. Raises ValueError if `seconds` is not above 0.
        """
        raise NotImplementedError("task 3.8.1")

    def error(self) -> StepTimeError:
        """Returns the prediction errors of the last 256 steps, or the errors of the fit before any step."""
        raise NotImplementedError("task 3.8.1")

    def margin(self, share: float) -> float:
        """Returns the factor, 1 to 2, that makes predictions cover a `share` (0 to 1) of the steps.

        You multiply predictions by it. It is the nearest-rank percentile of measured / predicted seconds over
        the last 256 steps; the fitted samples count as the first steps. A step with only decodes
        (attention_tokens == kv_tokens_read, one token each) does not count, because no budget changes how
        long it takes.
        """
        raise NotImplementedError("task 3.8.1")
