"""Which tokens a step computes: one budget, requests in order, one code path for prompts and answers."""

from collections.abc import Mapping, Sequence

from tiny_llm_lab.types import SchedulerConfig, StepPlan

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import ScheduledRequest


class Scheduler:
    """Requests that run and requests that wait, both in the order of the policy; it owns their blocks.

    A step is `schedule`, then a forward pass over what it planned, then `commit`. Between steps requests
    may be added, finished and aborted. No model and no arrays: tokens and blocks are numbers.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, prefix_cache: PrefixCache | None = None
    ) -> None:
        """No requests yet. Sets config, pool and prefix_cache, which must belong to `pool`.

        Sets max_num_tokens, the most tokens one request may have computed: max_model_len, or what all
        blocks hold if that is less. The caller finishes a request that has reached it.
        Raises UserError when config.chunk_grid is larger than a threshold that is on, or than what a full
        house of decodes leaves of the budget: a prompt could wait forever for room up to the next multiple.
        """
        raise NotImplementedError("task 3.4.2")

    @property
    def waiting(self) -> Sequence[ScheduledRequest]:
        """Requests that hold no blocks, the next to be admitted first."""
        raise NotImplementedError("task 3.4.2")

    @property
    def running(self) -> Sequence[ScheduledRequest]:
        """Admitted requests in order: the last one is preempted first."""
        raise NotImplementedError("task 3.4.2")

    def add(self, request: ScheduledRequest) -> None:
        """Let a new request wait for its turn.

        Raises UserError when it could never run: its prompt is empty, longer than max_model_len or than
        all blocks of the pool, or its id is in use. Raises ValueError for one that is not new.
        """
        raise NotImplementedError("task 3.4.2")

    def schedule(self, token_budget: int | None = None) -> StepPlan:
        """Plan one step: give tokens to running requests in order, then admit waiting ones in order.

        A request gets what it has left to compute, cut by long_prefill_token_threshold while its known
        tokens are not all computed, by what is left of max_num_batched_tokens (or of `token_budget`, if
        that is less), and by the rules of config. Blocks for these tokens are allocated. When they
        run out the last request in order is preempted: it gives its blocks back, forgets what was computed
        and waits again. A step that preempts admits nobody. A waiting request is admitted when a place
        and blocks for all its known tokens are free and it gets a token, or waits for blocks that another
        one computes; if the first one cannot, the others wait behind it.

        Batch-class requests take what the others leave, whatever the policy: tokens, those of their decodes
        too, when all others have theirs, the admitted ones included; places and blocks until another
        needs them. Then the last batch-class one is preempted, and the other is admitted in that same
        step. So the others get on as if no batch-class request were there; only where steps alternate,
        every second one may be of these. They are promised nothing, and go on when something is left.

        Raises UserError for a token_budget below 1, ValueError when a request already has max_num_tokens.
        """
        raise NotImplementedError("task 3.4.2")

    def schedule_behind(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step behind `plan`, which is not committed yet (from task 3.4.10 on).

        The plan that `schedule` would make after `commit`, as long as nobody comes or goes; None when
        `step_behind` is not certain of it, or when blocks would have to be taken from somebody. Its
        blocks are allocated. It is committed after `plan`.
        """
        raise NotImplementedError("task 3.4.2")

    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        """Take note of a forward pass: the planned tokens are computed, and new ones were sampled.

        A request whose known tokens are all computed now has its new tokens in `sampled`: the accepted
        part of its guess, then one more. They join the answer; the rejected rest of the guess does not
        count as computed, and the guess is used up. Blocks that became full can be found in the prefix
        cache. Requests that ended since `schedule` are passed over. Raises ValueError when a request has
        to have new tokens and has not, or has them and must not, or they are not its guess plus one.
        """
        raise NotImplementedError("task 3.4.2")

    def finish(self, request_id: str) -> None:
        """End a running request and give its blocks back. Raises ValueError when it does not run."""
        raise NotImplementedError("task 3.4.2")

    def abort(self, request_id: str) -> bool:
        """End a request, running or waiting, and give its blocks back; False when there is none."""
        raise NotImplementedError("task 3.4.2")

    def check(self) -> None:
        """Raise RuntimeError unless the blocks of all requests are exactly those that the pool counts."""
        raise NotImplementedError("task 3.4.2")
