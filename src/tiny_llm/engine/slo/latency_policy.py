"""How many tokens the next step may hold without breaking a latency limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import PriorityClass

from .step_time import StepTimeModel


@dataclass(frozen=True)
class DecodeWork:
    """A running request that gets its next token: stored tokens, and the time of its last token."""

    num_computed: int
    last_token_s: float
    priority_class: PriorityClass = "interactive"  # tokens of "batch" requests have no deadline
    num_new: int = 1  # tokens that it takes of the step: more with a draft (day 3.9)


@dataclass(frozen=True)
class PrefillWork:
    """A running or waiting prompt: stored tokens, the most it may take in this step, its arrival."""

    num_computed: int
    num_new: int
    arrival_s: float = 0.0
    priority_class: PriorityClass = "interactive"  # "batch" prompts take what interactive requests leave


class LatencyPolicy:
    """Turns a limit on the gap between two tokens into the token budget of the next step.

    With the model's margin the p99 of all gaps keeps the limit, not that of each request: a late step is late
    for every request that decodes, and late steps come in a row.
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
        """`itl_slo_s`: the longest gap between two tokens; `ttft_slo_s`: from arrival to the first token.

        `safety` multiplies every predicted time; None: the model's margin for 99 % of the steps, asked
        again for every budget. `min_prefill_tokens` is the progress floor: the number of prompt tokens that
        fit in every step, however late the decodes are. Raises ValueError when an SLO is not above 0,
        `safety` below 1 or the floor below 1.
        """
        raise NotImplementedError("task 3.8.2")

    def slack_s(self, now_s: float, decodes: Sequence[DecodeWork]) -> float:
        """Seconds until the first deadline, last token + ITL SLO; negative when it has passed.

        Batch-class decodes have no deadline; without interactive ones the slack is infinite.
        """
        raise NotImplementedError("task 3.8.2")

    def token_budget(
        self, now_s: float, decodes: Sequence[DecodeWork], prefills: Sequence[PrefillWork]
    ) -> int | None:
        """How many tokens the next step may hold, interactive decodes included; None = no limit.

        Every interactive decode takes its `num_new`. The rest goes to interactive prompts in the order of
        `prefills`, then to batch-class decodes, then to batch-class prompts. The budget is the largest whose
        step, in predicted seconds times `safety`, ends inside the slack; at least the progress floor (of
        interactive prompts, if there are any), at most what all of these can take. Batch-class requests get
        nothing before the interactive prompts have all that they can take; with a TTFT SLO, a step with
        their tokens must also end before the first token of any of these prompts is due. None when no decode
        has a deadline and no TTFT SLO limits batch-class requests.
        """
        raise NotImplementedError("task 3.8.2")
