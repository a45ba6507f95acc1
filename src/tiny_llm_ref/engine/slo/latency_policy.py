"""How many tokens the next step may hold, so that nobody who reads along waits too long."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import PriorityClass

from .step_time import StepTimeModel, context_work

# Of the steps with prompt tokens, the share that is to be inside the slack: SLOs speak of a p99.
_INSIDE = 0.99


@dataclass(frozen=True)
class DecodeWork:
    """A running request that gets its next token: stored tokens, and when its last token came."""

    num_computed: int
    last_token_s: float
    priority_class: PriorityClass = "interactive"  # tokens of "batch" requests have no deadline
    num_new: int = 1  # tokens that it takes of the step: more with a draft (day 3.8)


@dataclass(frozen=True)
class PrefillWork:
    """A prompt in the works or waiting: stored tokens, the most it may take in this step, its arrival."""

    num_computed: int
    num_new: int
    arrival_s: float = 0.0
    priority_class: PriorityClass = "interactive"  # "batch": takes what interactive requests leave


class LatencyPolicy:
    """Turns a limit on the gap between two tokens into the token budget of the next step."""

    def __init__(
        self,
        model: StepTimeModel,
        itl_slo_s: float,
        ttft_slo_s: float | None = None,
        *,
        safety: float | None = None,
        min_prefill_tokens: int = 16,
    ) -> None:
        """`itl_slo_s`: the longest gap between two tokens; `ttft_slo_s`: from arrival to the first token.

        `safety` multiplies every predicted time; None: the model's margin for 99 % of the steps, asked anew
        for every budget. `min_prefill_tokens` is the progress floor: so many prompt tokens fit in every
        step, however late the decodes are. Raises ValueError when an SLO is not above 0, `safety` below
        1 or the floor below 1.
        """
        slos = [itl_slo_s] + ([] if ttft_slo_s is None else [ttft_slo_s])
        if min(slos) <= 0 or (safety is not None and safety < 1) or min_prefill_tokens < 1:
            raise ValueError("SLOs must be above 0, safety and min_prefill_tokens 1 or more")
        self.model = model
        self.itl_slo_s = itl_slo_s
        self.ttft_slo_s = ttft_slo_s
        self.safety = safety
        self.min_prefill_tokens = min_prefill_tokens

    def slack_s(self, now_s: float, decodes: Sequence[DecodeWork]) -> float:
        """Seconds until the first deadline, last token + ITL SLO; negative when it has passed.

        Batch-class decodes have no deadline; infinite when there is no other.
        """
        lasts = [decode.last_token_s for decode in decodes if decode.priority_class != "batch"]
        return min(lasts) + self.itl_slo_s - now_s if lasts else math.inf

    def token_budget(
        self, now_s: float, decodes: Sequence[DecodeWork], prefills: Sequence[PrefillWork]
    ) -> int | None:
        """How many tokens the next step may hold, decodes included; None = no limit.

        Every interactive decode takes its `num_new`. The rest goes to the interactive ones of `prefills` in
        their order, then to batch-class decodes, then to batch-class `prefills`; it is the largest number
        whose step, in predicted seconds times `safety`, is inside the slack. Never below the progress
        floor (of the interactive prompts, if there are any), never more than all of these can take.
        With a TTFT SLO, what batch-class requests get must also leave every interactive prompt that this
        step finishes inside its own; they get nothing while one is left unfinished. No limit when no
        decode has a deadline, except for such a leftover.
        """
        slack_s = self.slack_s(now_s, decodes)
        urgent = [work for work in prefills if work.priority_class != "batch"]
        batch = [
            PrefillWork(work.num_computed, work.num_new) for work in decodes if work.priority_class == "batch"
        ]
        batch += [work for work in prefills if work.priority_class == "batch"]
        decodes = [work for work in decodes if work.priority_class != "batch"]
        num_urgent = sum(work.num_new for work in urgent)
        num_wanted = num_urgent + sum(work.num_new for work in batch)
        ttft_slack_s = math.inf
        if self.ttft_slo_s is not None and batch:
            deadlines = [work.arrival_s + self.ttft_slo_s for work in urgent]
            ttft_slack_s = min(deadlines, default=math.inf) - now_s
        if slack_s == ttft_slack_s == math.inf:
            return None

        step_s = self._predictor(decodes, [*urgent, *batch])
        fitting = max(
            min(self.min_prefill_tokens, num_urgent or num_wanted),
            _largest(num_urgent, lambda count: step_s(count) <= slack_s),
        )
        if fitting >= num_urgent:
            limit_s = min(slack_s, ttft_slack_s)
            fitting = max(fitting, _largest(num_wanted, lambda count: step_s(count) <= limit_s))
        return sum(decode.num_new for decode in decodes) + fitting

    def _predictor(
        self, decodes: Sequence[DecodeWork], prefills: Sequence[PrefillWork]
    ) -> Callable[[int], float]:
        """The seconds, safety included, of a step with so many prompt tokens besides the decodes."""
        safety = self.model.margin(_INSIDE) if self.safety is None else self.safety
        num_decoded = sum(decode.num_new for decode in decodes)
        decodes_attend = sum(context_work(decode.num_computed, decode.num_new) for decode in decodes)
        decodes_store = sum(decode.num_computed + decode.num_new for decode in decodes)

        def step_s(num_prefill: int) -> float:
            num_attended, num_stored = decodes_attend, decodes_store
            left = num_prefill
            for work in prefills:
                if left == 0:
                    break
                taken = min(work.num_new, left)
                num_attended += context_work(work.num_computed, taken)
                num_stored += work.num_computed + taken
                left -= taken
            return safety * self.model.predict(num_decoded + num_prefill, num_attended, num_stored)

        return step_s


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count from 0 to `most` that fits; 0 also when nothing does."""
    fitting, too_many = 0, most + 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(middle):
            fitting = middle
        else:
            too_many = middle
    return fitting
