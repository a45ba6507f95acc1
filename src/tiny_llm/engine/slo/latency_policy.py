"""How many tokens the next step may hold, so that nobody who reads along waits too long."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types import PriorityClass

from .step_time import StepTimeModel


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
        raise NotImplementedError("task 3.7.2")

    def slack_s(self, now_s: float, decodes: Sequence[DecodeWork]) -> float:
        """Seconds until the first deadline, last token + ITL SLO; negative when it has passed.

        Batch-class decodes have no deadline; infinite when there is no other.
        """
        raise NotImplementedError("task 3.7.2")

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
        raise NotImplementedError("task 3.7.2")
