"""How many tokens the next step may hold without breaking a latency limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import PriorityClass

from .step_time import StepTimeModel


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
        raise NotImplementedError("task 3.8.2")

    def slack_s(self, now_s: float, decodes: Sequence[DecodeWork]) -> float:
        """Returns the seconds until the first deadline, last token + ITL SLO; negative if it has passed.

        Batch-class decodes have no deadline. Without interactive decodes the slack is infinite.
        """
        raise NotImplementedError("task 3.8.2")

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
        raise NotImplementedError("task 3.8.2")
