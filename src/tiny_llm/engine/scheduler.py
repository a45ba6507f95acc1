"""Which tokens a step computes: one budget, sequences in order, one code path for prompts and answers."""

from collections.abc import Mapping, Sequence

from tiny_llm_lab.types import SchedulerConfig, StepPlan

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import TokenSequence


class Scheduler:
    """Running and waiting sequences, both in the order of the policy; it owns their blocks.

    A step is `schedule`, then a forward pass over what it planned, then `commit`. Between steps sequences
    may be added, finished and aborted. No model and no arrays: tokens and blocks are numbers.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, prefix_cache: PrefixCache | None = None
    ) -> None:
        """No sequences yet. Sets config, pool, prefix_cache, which must belong to `pool`, and queue.
        Sets max_num_tokens, the most tokens one sequence may have computed: max_model_len, or what all
        blocks hold if that is less. The caller finishes a sequence that has reached it.
        Raises UserError as `validate_chunk_grid` (from task 3.5.2 on).
        """
        raise NotImplementedError("task 3.4.2")

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Plan by `config` from now on (from task 3.6.3 on); UserError as `validate_change`, `__init__`."""
        raise NotImplementedError("task 3.6.3")

    @property
    def waiting(self) -> Sequence[TokenSequence]:
        """Sequences that hold no blocks, the next to be admitted first."""
        raise NotImplementedError("task 3.4.2")

    @property
    def running(self) -> Sequence[TokenSequence]:
        """Admitted sequences in order: the last one is preempted first."""
        raise NotImplementedError("task 3.4.2")

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait to be admitted.

        Raises UserError, whose message has the word in quotes, when it could never run: its prompt is
        "empty", longer than "max_model_len" or than all "blocks" of the pool hold, or its id is in use
        (`require_room` of tiny_llm_lab.types words two of them). Raises ValueError for one that is not new.
        """
        raise NotImplementedError("task 3.4.2")

    def schedule(self, token_budget: int | None = None) -> StepPlan:
        """Plan one step: give tokens to running sequences in order, then admit waiting ones in order.

        A sequence gets what it has left to compute, draft included, up to max_num_tokens in all: cut by
        long_prefill_token_threshold unless it decodes, by what is left of max_num_batched_tokens or of a
        smaller `token_budget`, and by the rules of config. Where blocks run out, a sequence goes without its
        draft; if that is not enough, the last one in order is preempted: its blocks go back, its computed
        tokens and its draft are forgotten, and it waits again. A waiting sequence is admitted when a slot and
        blocks for all its known tokens are free and it gets a token, waits for blocks that another computes,
        or has a fair share that ends before the grid (from task 3.5.2 on). One that cannot be admitted holds
        up all behind it. After a preemption a class admits only if all victims are of less urgent classes.

        Priority classes (from task 3.5.3 on) are served one after the other: batch sequences get tokens after
        every interactive one, running or newly admitted, and lose slots and blocks as soon as an interactive
        one needs them. Where steps alternate, a batch step may come between two interactive ones.

        Raises UserError for a token_budget below 1, ValueError when a sequence already has max_num_tokens.
        """
        raise NotImplementedError("task 3.4.2")

    def schedule_next(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step after `plan`, not committed yet, where it is certain (from task 3.7.2 on).

        The plan that `schedule` would make after `commit` if no request were added or ended, with its blocks
        allocated; None, and nothing is changed, when it exceeds the budget or the free blocks.
        """
        raise NotImplementedError("task 3.7.2")

    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        """Record a forward pass: the planned tokens are computed, and new ones were sampled.

        A sequence whose known tokens are all computed now has its new tokens in `sampled`: the accepted
        part of its draft, then one more. They join the answer; rejected draft tokens do not count as
        computed, and the draft is used up. Blocks that became full can be found in the prefix
        cache. Requests that ended since `schedule` are skipped. Raises ValueError as `TokenSequence.advance`.
        """
        raise NotImplementedError("task 3.4.2")

    def finish(self, request_id: str) -> None:
        """End a running sequence and free its blocks. Raises ValueError when it does not run."""
        raise NotImplementedError("task 3.4.2")

    def abort(self, request_id: str) -> bool:
        """End a sequence, running or waiting, and free its blocks; False when there is none."""
        raise NotImplementedError("task 3.4.2")

    def check(self) -> None:
        """Raise RuntimeError unless the blocks of all sequences are exactly those that the pool counts."""
        raise NotImplementedError("task 3.4.2")
