"""Which blocks a request has, lacks, shares and gives back: between the scheduler, the pool and the cache."""

from collections.abc import Iterator, Mapping, Sequence

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import ScheduledRequest


class BlockTables:
    """What requests lack of blocks, find in the prefix cache, let others find, and give back."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        """Without a cache every request computes all of its tokens. Sets pool and prefix_cache."""
        raise NotImplementedError("task 3.4.3")

    def num_lacking(self, request: ScheduledRequest, num_new_tokens: int) -> int:
        """How many blocks it lacks to have `num_new_tokens` more computed."""
        raise NotImplementedError("task 3.4.3")

    def num_promised(self, request: ScheduledRequest) -> int:
        """How many blocks it lacks to have all of its known tokens computed."""
        raise NotImplementedError("task 3.4.3")

    def extend(self, requests: Sequence[ScheduledRequest]) -> bool:
        """Give each the block, if it lacks one, for a token behind its known ones (from task 3.4.10 on).

        False, and nobody gets any, when there are not enough free ones.
        """
        raise NotImplementedError("task 3.4.3")

    def peek(self, request: ScheduledRequest, num_lent: Mapping[int, int]) -> tuple[int, int, bool]:
        """What a waiting request would find in the cache: cached tokens, the blocks it takes from the free
        ones until its known tokens are computed, and whether it would then wait for another's block.

        Holds and counts nothing. By block, `num_lent` says how many of its holders will give it back as
        soon as it is wanted: a block of nobody else is as good as free.
        """
        raise NotImplementedError("task 3.4.3")

    def fitting(
        self, candidates: Sequence[ScheduledRequest], running: Sequence[ScheduledRequest]
    ) -> Iterator[tuple[ScheduledRequest, int, bool]]:
        """Those of `candidates`, in order, who find blocks for all known tokens, up to the first without.

        The blocks are there beyond those that running requests still need for theirs: else prompts would be
        begun only to be preempted. With each come the cached tokens, and whether it would wait for another's
        block. The candidates are of one class: if they are interactive, all blocks of batch-class requests
        are there for them.
        """
        raise NotImplementedError("task 3.4.3")

    def follow(self, request: ScheduledRequest) -> bool:
        """Give a running request the cached blocks that come next; whether it waits for another's block.

        The blocks' tokens count as computed, and as cached before its first preemption. Unless it
        waits, it reserves what it will compute itself. A request inside of a block goes on by itself.
        """
        raise NotImplementedError("task 3.4.3")

    def register(self, request: ScheduledRequest) -> None:
        """Let others find the blocks that its computed tokens have filled."""
        raise NotImplementedError("task 3.4.3")

    def release(self, request: ScheduledRequest) -> None:
        """Give all of its blocks and reservations back; `block_ids` is empty then."""
        raise NotImplementedError("task 3.4.3")
