"""Whose turn it is, and how a step's tokens are divided: what policies differ in."""

from collections.abc import Sequence

from tiny_llm_lab.types import Policy, SchedulerConfig

from .sequence import ScheduledRequest

# Steps that a request waits at most, with policy "priority", before it is the most urgent of its class.
MAX_WAITING_STEPS = 256


def order_key(
    policy: Policy, request: ScheduledRequest, num_added: int, is_aged: bool = False
) -> tuple[float, ...]:
    """What requests are sorted by, smallest first; `num_added` requests were added before this one.

    Batch-class requests come behind all others, whatever the policy. Then "priority": by priority, then
    arrival_s, then num_added; the other policies by num_added alone. A request that `is_aged` comes
    before all of its class that are not, and among those that are by num_added.
    """
    raise NotImplementedError("task 3.4.4")


def turns(
    running: Sequence[ScheduledRequest], waiting: Sequence[ScheduledRequest], max_num_seqs: int
) -> list[tuple[Sequence[ScheduledRequest], Sequence[ScheduledRequest]]]:
    """Whose turn it is in a step, from two lines in order: first the interactive requests, then batch class.

    Of each class those who run, and those who wait and find one of `max_num_seqs` places. Interactive
    ones find the places of batch-class ones that run, too; those that wait find what is left then.
    """
    raise NotImplementedError("task 3.4.4")


class Lineup:
    """Who waits and who runs, both in the order of a policy, counted in steps."""

    def __init__(self, policy: Policy) -> None:
        """Nobody is there. Sets policy, waiting = [] and running = [], which are always in order."""
        raise NotImplementedError("task 3.4.4")

    def add(self, request: ScheduledRequest) -> None:
        """A new request waits; its `order` says where."""
        raise NotImplementedError("task 3.4.4")

    def is_waiting(self, request: ScheduledRequest) -> bool:
        """Whether it waits; else it runs."""
        raise NotImplementedError("task 3.4.4")

    def admit(self) -> ScheduledRequest:
        """The first of those who wait runs from now on."""
        raise NotImplementedError("task 3.4.4")

    def preempt(self) -> ScheduledRequest:
        """The last of those who run waits from now on, in its old place in the order."""
        raise NotImplementedError("task 3.4.4")

    def remove(self, request: ScheduledRequest) -> None:
        """It neither waits nor runs any more."""
        raise NotImplementedError("task 3.4.4")

    def next_step(self) -> None:
        """Count a step. With policy "priority", who waited MAX_WAITING_STEPS steps is the most urgent of
        its class now."""
        raise NotImplementedError("task 3.4.4")


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` tokens among requests that need so many: max-min fair, in the order of `needs`.

    Nobody gets more than it needs, what one leaves is divided among the others, and nothing stays while
    somebody needs more. Requests that need more than they get are at most one token apart, the
    earlier ones having it: ([4096, 10, 300], 512) -> [251, 10, 251].
    """
    raise NotImplementedError("task 3.4.4")


def align_to_grid(start: int, num_new_tokens: int, num_missing_tokens: int, grid: int) -> int:
    """Shorten a chunk so that it ends at a multiple of `grid` tokens of its request (0 = no grid).

    The chunk has `num_new_tokens` from token `start` on, of `num_missing_tokens`; one that reaches the
    last of these stays as it is. 0 when no such place lies within the chunk.
    """
    raise NotImplementedError("task 3.4.4")


def reject_narrow_grid(config: SchedulerConfig) -> None:
    """Raise UserError when a prompt could wait forever for room up to the next multiple of chunk_grid.

    The threshold, if it is on, and what max_num_seqs - 1 decodes leave of the budget must reach from
    one multiple to the next.
    """
    raise NotImplementedError("task 3.4.4")


class StepBudget:
    """The tokens of one step: what is left of them, who got how many, and who was preempted."""

    def __init__(self, config: SchedulerConfig, num_tokens: int) -> None:
        """`num_tokens` are left. Sets left, granted = {} by request id in order, preempted = []."""
        raise NotImplementedError("task 3.4.4")

    def divide(self, needs: Sequence[tuple[ScheduledRequest, int, int]]) -> None:
        """Policy "fair": fair shares of what is left bound what `chunk` gives from now on.

        `needs` has all requests that may get tokens, in order, each as in `chunk`. A prefill needs no more
        than the threshold. With a chunk_grid, a prefill that is cut gets enough to reach the grid's next
        multiple, from later ones that are cut as well, and the first one if need be from any prefill.
        Decodes keep their shares.
        """
        raise NotImplementedError("task 3.4.4")

    def chunk(self, request: ScheduledRequest, num_computed: int, num_missing: int) -> int:
        """How many of its `num_missing` tokens a request may have, the first `num_computed` being computed.

        A decode gets what it needs, guess included, as far as tokens are left. A prefill gets what
        `clamp_new_tokens` and the grid leave; without chunked prefill all or nothing.
        """
        raise NotImplementedError("task 3.4.4")

    def grant(self, request: ScheduledRequest, num_new_tokens: int) -> None:
        """Give a request its tokens of this step, 1 or more."""
        raise NotImplementedError("task 3.4.4")
