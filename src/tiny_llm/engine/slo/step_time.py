"""How long a step of the engine will take, before it runs."""

from collections.abc import Sequence
from dataclasses import dataclass


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
    raise NotImplementedError("task 3.7.1")


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
        raise NotImplementedError("task 3.7.1")

    def predict(self, num_tokens: int, num_attended: int, num_stored: int = 0) -> float:
        """Seconds of a step, the correction of its regime included.

        `num_attended`: stored tokens that the step's tokens see, summed over its tokens (`context_work`).
        `num_stored`: the same summed over its requests; each is read once, however many tokens look. Never
        falls as one of the three grows inside a regime, and a large step never takes less than a small one
        of `split_tokens` tokens that only reads as much.
        """
        raise NotImplementedError("task 3.7.1")

    def record(self, num_tokens: int, num_attended: int, num_stored: int, seconds: float) -> None:
        """Learn from a step that took `seconds`: `small_correction` or `large_correction` moves.

        The correction becomes (1 - newest) times its value plus `newest` times measured / fitted seconds.
        One measurement counts at most as twice and at least as half the correction so far: a hiccup must
        not look like a new machine. How wrong the prediction before this step was is remembered for `error`
        and `margin`. Raises ValueError when `seconds` is not above 0.
        """
        raise NotImplementedError("task 3.7.1")

    def error(self) -> StepTimeError:
        """How wrong the predictions of the last 256 steps were, or the fit while there are none."""
        raise NotImplementedError("task 3.7.1")

    def margin(self, share: float) -> float:
        """What to multiply predictions by, so that a `share` (0 to 1) of the steps is inside: 1 to 2.

        The nearest-rank percentile of measured / predicted seconds of the last 256 steps, the fitted
        samples counted as the first ones. A step of decodes alone (num_attended == num_stored: one token
        each) does not count: nobody chooses how long it takes. A quiet phase cannot push the margin
        below 1, nor hiccups above 2.
        """
        raise NotImplementedError("task 3.7.1")
