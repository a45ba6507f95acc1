"""How long a step of the engine will take, before it runs."""

from collections.abc import Sequence

from tiny_llm_lab.types import StepSample, StepTimeError


class StepTimeModel:
    """Predicts the seconds of a step: a + b * num_tokens + c * attention_tokens + d * kv_tokens_read.

    There are two regimes with an (a, b, c, d) each. In a small step (up to `split_tokens` tokens) the time
    goes into reading the weights, which costs the same for any number of tokens; in a large one it goes into
    arithmetic, which costs the same for every token. Each regime has a correction, learnt while running.
    """

    def __init__(
        self, samples: Sequence[StepSample], split_tokens: int | None = None, newest: float = 0.1
    ) -> None:
        """Fit `small` and `large`, (a, b, c, d) each, to at least 3 measured samples.

        Each is `fit_step_times` (tiny_llm_lab.types.scheduling.step_time_fit) of the regime's samples, or of
        all samples when the regime has fewer than 6. `split_tokens` None: the power of two from 16 to 1,024
        with the smallest sum of relative errors. `newest` is the weight of the newest step in the corrections
        (0 = never correct). Raises ValueError for too few samples, a time that is not above 0, or a weight
        outside 0 to 1.
        """
        raise NotImplementedError("task 3.8.1")

    def predict(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int = 0) -> float:
        """Seconds of a step, the correction of its regime included; the counts are those of a `StepSample`.

        A larger count never makes the prediction smaller inside a regime. A large step takes at least as
        long as a small one of `split_tokens` tokens with the same kv_tokens_read and no attention tokens.
        """
        raise NotImplementedError("task 3.8.1")

    def record(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int, seconds: float) -> None:
        """Learn from a step that took `seconds`: moves `small_correction` or `large_correction`.

        The correction becomes (1 - newest) times its value plus `newest` times measured / fitted seconds.
        One measurement counts at most as twice and at least as half the correction so far, so that a hiccup
        does not look like a slower machine. The error of the prediction before this step is remembered for
        `error` and `margin`. Raises ValueError when `seconds` is not above 0.
        """
        raise NotImplementedError("task 3.8.1")

    def error(self) -> StepTimeError:
        """The errors of the predictions of the last 256 steps, or those of the fit while there are none."""
        raise NotImplementedError("task 3.8.1")

    def margin(self, share: float) -> float:
        """The factor, 1 to 2, by which predictions are multiplied to cover a `share` (0 to 1) of the steps.

        The nearest-rank percentile of measured / predicted seconds of the last 256 steps, the fitted
        samples counted as the first ones. A step of decodes alone (attention_tokens == kv_tokens_read, one
        token each) does not count: no budget changes how long it takes.
        """
        raise NotImplementedError("task 3.8.1")
