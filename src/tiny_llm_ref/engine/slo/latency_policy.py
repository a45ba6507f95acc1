"""How many tokens the next step may hold without breaking a latency limit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tiny_llm_lab.types import PriorityClass, attention_tokens

from .step_time import StepTimeModel

# The share of steps with prompt tokens that should end inside the slack: late ones come in a row, and each is
# late for all requests that decode, whose own gaps may be late one in a hundred.
_INSIDE = 0.995
# The margin covers steps like earlier ones. In a growing burst each step has more decodes than any before.
_ROOM = 1.04


@dataclass(frozen=True)
class DecodeWork:
    """A running request that gets its next token: its stored tokens, and the time of its last token."""

    num_computed: int
    last_token_s: float
    priority_class: PriorityClass = "interactive"  # tokens of "batch" requests have no deadline
    num_new: int = 1  # tokens that it takes in the step; more with a draft (day 3.9)


@dataclass(frozen=True)
class PrefillWork:
    """A running or waiting prompt: stored tokens, the most tokens it may take in this step, its arrival."""

    num_computed: int
    num_new: int
    arrival_s: float = 0.0
    priority_class: PriorityClass = "interactive"  # "batch" prompts take what interactive requests leave


_Work = TypeVar("_Work", DecodeWork, PrefillWork)


class LatencyPolicy:
    """Turns a limit on the inter-token latency (ITL) into the token budget of the next step.

    The p99 of each request's own ITLs should keep the limit. A late step is late for every request that
    decodes, and late steps come in a row, so there is room above the model's margin.
    """

    def __init__(
        self,
        model: StepTimeModel,
        itl_slo_s: float,
        ttft_slo_s: float | None = None,
        *,
        safety: float | None = None,
        min_prefill_tokens: int = 16,
    ) -> None:
        """`itl_slo_s` limits the time between two tokens, `ttft_slo_s` the time from arrival to first token.

        `safety` multiplies every predicted time; with None it is 1.04 times the model's margin for 99.5 %
        of the steps, read again for every budget. `min_prefill_tokens` is the progress floor: so many prompt
        tokens fit in every step, however late the decodes are. Raises ValueError unless each SLO is above 0
        and `safety` and the floor are at least 1.
        """
        self.itl_slo_s = itl_slo_s
        self.ttft_slo_s = math.inf if ttft_slo_s is None else ttft_slo_s
        if (
            min(itl_slo_s, self.ttft_slo_s) <= 0
            or (safety is not None and safety < 1)
            or min_prefill_tokens < 1
        ):
            raise ValueError("SLOs must be above 0, safety and min_prefill_tokens 1 or more")
        self.model = model
        self.safety = safety
        self.min_prefill_tokens = min_prefill_tokens

    def slack_s(self, now_s: float, decodes: Sequence[DecodeWork]) -> float:
        """Returns the seconds until the first deadline, last token + ITL SLO; negative if it has passed.

        Batch-class decodes have no deadline. Without interactive decodes the slack is infinite.
        """
        interactive, _ = _by_class(decodes)
        return _slack_s(now_s, [each.last_token_s for each in interactive], self.itl_slo_s)

    def token_budget(
        self, now_s: float, decodes: Sequence[DecodeWork], prefills: Sequence[PrefillWork]
    ) -> int | None:
        """Returns how many tokens the next step may have, interactive decodes included; None = no limit.

        Every interactive decode takes its `num_new`. The rest goes to interactive prompts in the order of
        `prefills`, then to batch-class decodes, then to batch-class prompts. The budget is the largest for
        which the step ends inside the slack, in predicted seconds times `safety`. It is at least the progress
        floor (of interactive prompts, if there are any) and at most what all of these can take. Batch-class
        requests get nothing until the interactive prompts have all that they can take. With a TTFT SLO, a
        step with batch-class tokens must also end before the first token of any interactive prompt is due.
        Returns None if no decode has a deadline and no TTFT SLO limits batch-class requests.
        """
        decodes, batch_decodes = _by_class(decodes)
        prefills, batch_prefills = _by_class(prefills)
        # In a step, a batch-class decode is like a short prompt: it takes tokens if any are left.
        batch = [*(PrefillWork(each.num_computed, each.num_new) for each in batch_decodes), *batch_prefills]
        itl_slack_s = self.slack_s(now_s, decodes)
        arrivals_s = [each.arrival_s for each in prefills] if batch else []
        ttft_slack_s = _slack_s(now_s, arrivals_s, self.ttft_slo_s)
        if itl_slack_s == ttft_slack_s == math.inf:
            return None

        step_s = self._predictor(decodes, [*prefills, *batch])
        num_prefill = _num_new(prefills)
        num_wanted = num_prefill + _num_new(batch)
        floor = min(self.min_prefill_tokens, num_prefill or num_wanted)
        budget = max(floor, _largest(num_prefill, lambda count: step_s(count) <= itl_slack_s))
        if budget >= num_prefill:
            limit_s = min(itl_slack_s, ttft_slack_s)
            budget = max(budget, _largest(num_wanted, lambda count: step_s(count) <= limit_s))
        return _num_new(decodes) + budget

    def _predictor(
        self, decodes: Sequence[DecodeWork], prefills: Sequence[PrefillWork]
    ) -> Callable[[int], float]:
        """Returns a function from the number of tokens besides the decodes to seconds, safety included."""
        safety = _ROOM * self.model.margin(_INSIDE) if self.safety is None else self.safety
        num_decoded = _num_new(decodes)
        decode_attention = sum(attention_tokens(each.num_computed, each.num_new) for each in decodes)
        decode_kv_read = sum(each.num_computed + each.num_new for each in decodes)

        def step_s(num_prefill: int) -> float:
            attention, kv_read = decode_attention, decode_kv_read
            left = num_prefill
            for each in prefills:
                if left == 0:
                    break
                taken = min(each.num_new, left)
                attention += attention_tokens(each.num_computed, taken)
                kv_read += each.num_computed + taken
                left -= taken
            return safety * self.model.predict(num_decoded + num_prefill, attention, kv_read)

        return step_s


def _slack_s(now_s: float, since_s: Sequence[float], slo_s: float) -> float:
    """Returns the seconds until `slo_s` have passed since the first of `since_s`; infinite if it is empty."""
    return min(since_s, default=math.inf) + slo_s - now_s


def _by_class(works: Sequence[_Work]) -> tuple[list[_Work], list[_Work]]:
    """Returns the interactive works and the batch-class works, each in order."""
    interactive = [each for each in works if each.priority_class != "batch"]
    return interactive, [each for each in works if each.priority_class == "batch"]


def _num_new(works: Sequence[DecodeWork] | Sequence[PrefillWork]) -> int:
    return sum(each.num_new for each in works)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest count from 0 to `most` that fits, or 0 if none does."""
    fitting, too_many = 0, most + 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(middle):
            fitting = middle
        else:
            too_many = middle
    return fitting
