"""Which tokens a step computes: one budget, sequences in order, the same code for prompts and answers."""

from collections.abc import Mapping, Sequence

from tiny_llm_lab.types import SchedulerConfig, StepPlan

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import TokenSequence


class Scheduler:
    """Running and waiting sequences, each in the order of the policy. Owns their blocks.

    A step is `schedule`, then a forward pass over what it planned, then `commit`. Between steps you may add,
    finish and abort sequences. There is no model and there are no arrays; tokens and blocks are numbers.
    """

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, prefix_cache: PrefixCache | None = None
    ) -> None:
        """No sequences yet. Sets config, pool, prefix_cache, which must belong to `pool`, and queue.
        Sets max_num_tokens, the most computed tokens a sequence may have: max_model_len, or what all blocks
        hold if that is less. The caller must finish a sequence that has reached it.
        Raises UserError like `validate_chunk_grid` (from task 3.5.2 on).
        """
        raise NotImplementedError("task 3.4.2")

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Use `config` now (from task 3.6.3 on). Raises UserError like `validate_change` and `__init__`."""
        raise NotImplementedError("task 3.6.3")

    @property
    def waiting(self) -> Sequence[TokenSequence]:
        """The sequences that hold no blocks, starting with the next to be admitted."""
        raise NotImplementedError("task 3.4.2")

    @property
    def running(self) -> Sequence[TokenSequence]:
        """The admitted sequences, in order. The last sequence is preempted first."""
        raise NotImplementedError("task 3.4.2")

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait to be admitted.

        Raises UserError if it could never run: its prompt is "empty", longer than "max_model_len" or longer
        than all "blocks" of the pool hold. The message has the word in quotes; `require_room` of
        tiny_llm_lab.types words two of them. Raises UserError if its id is in use, and ValueError if the
        sequence is not new.
        """
        raise NotImplementedError("task 3.4.2")

    def schedule(self, token_budget: int | None = None) -> StepPlan:
        """Plan one step: give tokens to running sequences in order, then admit waiting ones in order.

        A sequence gets what it has left to compute, draft included, up to max_num_tokens in total. This is
        limited by long_prefill_token_threshold unless the sequence decodes, by what is left of
        max_num_batched_tokens or of a smaller `token_budget`, and by the rules of config. If blocks run out,
        a sequence loses its draft. If that is not enough, the last sequence in order is preempted: its blocks
        are freed, its computed tokens and its draft are forgotten, and it waits again.

        A waiting sequence is admitted if there is a free place (max_num_seqs) and there are free blocks for
        all its known tokens, and if it gets a token, waits for blocks that another sequence computes, or has
        a fair share that ends before the grid (from task 3.5.2 on). A sequence that can't be admitted blocks
        all sequences after it. After a preemption a class admits only if all victims are of less urgent
        classes.

        Priority classes (from task 3.5.3 on) are served one after another. Batch sequences get tokens after
        all interactive sequences, running or newly admitted, and lose places and blocks as soon as an
        interactive sequence needs them. If steps alternate, a batch step may come between two interactive
        steps.

        Raises UserError for a token_budget below 1, and ValueError if a sequence already has max_num_tokens.
        """
        raise NotImplementedError("task 3.4.2")

    def reserve(self, sequence: TokenSequence, num_tokens: int) -> int:
        """Give a running sequence blocks for a draft, as `KVCacheManager.reserve` (from task 3.9.6 on)."""
        raise NotImplementedError("task 3.9.6")

    def schedule_next(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step after `plan`, before `plan` is committed, if it is certain (from task 3.7.2 on).

        Returns the plan that `schedule` would make after `commit` if no request were added or ended, and
        allocates its blocks. Returns None and changes nothing if it exceeds the budget or the free blocks.
        """
        raise NotImplementedError("task 3.7.2")

    def commit(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]]) -> None:
        """Record a forward pass: the planned tokens are computed, and new tokens were sampled.

        A sequence whose known tokens are now all computed has its new tokens in `sampled`: the accepted part
        of its draft, then one more token. They join the answer; rejected draft tokens do not count as
        computed, and the draft is used up. Blocks that became full can be found in the prefix cache. Requests
        that ended since `schedule` are skipped. Raises ValueError like `TokenSequence.advance`.
        """
        raise NotImplementedError("task 3.4.2")

    def finish(self, request_id: str) -> None:
        """End a running sequence and free its blocks. Raises ValueError if it does not run."""
        raise NotImplementedError("task 3.4.2")

    def abort(self, request_id: str) -> bool:
        """End a running or waiting sequence and free its blocks. Returns False if there is none."""
        raise NotImplementedError("task 3.4.2")

    def check(self) -> None:
        """Raises RuntimeError unless the pool counts exactly the blocks that all sequences have."""
        raise NotImplementedError("task 3.4.2")
