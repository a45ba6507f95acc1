"""Which blocks of the KV cache are held, and by how many; numbers of blocks, no arrays."""

from collections.abc import Callable, Iterable, Sequence


class OutOfBlocksError(RuntimeError):
    """Fewer blocks are free than were asked for."""


class BlockPool:
    """Blocks 0 to num_blocks - 1 of `block_size` tokens each, with the number of holders of each.

    A block without a holder is free. Free blocks form a queue from which they are allocated: first those
    that store nothing worth keeping, then the cached ones, the one that has been free longest first. A block
    is cached once it is marked, until it is allocated again. Every operation takes O(1) per block.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, on_evict: Callable[[int], None] | None = None
    ) -> None:
        """All blocks are free in the order of their numbers, none is cached.

        Sets num_blocks, block_size and on_evict, which is called with the number of a cached block that is
        about to lose what it stores. Raises UserError when either number is below 1.
        """
        raise NotImplementedError("task 3.1.1")

    def reset(self) -> None:
        """Take all blocks from their holders and forget which are cached, as in a new pool.

        `on_evict` is not called: a cache on top has to be cleared as well.
        """
        raise NotImplementedError("task 3.1.1")

    @property
    def num_free(self) -> int:
        """Blocks without a holder, cached ones included."""
        raise NotImplementedError("task 3.1.1")

    def allocate(self, count: int) -> list[int]:
        """Take the first `count` blocks of the queue; each has one holder then.

        A cached one is evicted: `on_evict` is called, and it is not cached any more. Raises
        OutOfBlocksError when fewer are free, and ValueError for a negative count; nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def share(self, blocks: Sequence[int]) -> None:
        """Add one holder to each of `blocks`; cached blocks that were free leave the queue.

        Raises ValueError for a block that is neither held nor cached: what it stores belongs to no request.
        Nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`, the blocks of one request in the order of its tokens.

        Blocks without a holder left become free, in reverse order: cached ones join the end of the queue, so
        that the last block of a chain is evicted before those that it builds on; the rest join its front.
        Raises ValueError when a block has fewer holders than would be taken; nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def ref_count(self, block: int) -> int:
        """The number of holders of `block`. Raises ValueError for a number that is no block's."""
        raise NotImplementedError("task 3.1.1")

    def mark_cached(self, block: int) -> None:
        """Let `block` keep what it stores after its last holder has gone, until it is allocated again.

        Raises ValueError for a block without a holder.
        """
        raise NotImplementedError("task 3.1.1")

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless `tables`, the blocks of every request, explain every holder of a block.

        The message names the first block that is held by more or fewer tables than it has holders, or
        that is held and free at once, or neither.
        """
        raise NotImplementedError("task 3.1.1")
