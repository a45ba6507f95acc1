"""Which blocks of the KV cache are held, and by how many holders. Only block numbers, no arrays."""

from collections.abc import Callable, Iterable, Sequence


class OutOfBlocksError(RuntimeError):
    """Fewer blocks are free than you asked for."""


class BlockPool:
    """Blocks 0 to num_blocks - 1 of `block_size` tokens each, and how many holders each has.

    A block without a holder is free. Free blocks are allocated from a queue: first the blocks that store
    nothing worth keeping, then the cached blocks, starting with the block that has been free longest. Marking
    a block makes it cached, until it is allocated again. Every operation takes O(1) per block.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 16, on_evict: Callable[[int], None] | None = None
    ) -> None:
        """All blocks are free, in the order of their numbers, and none is cached.

        Sets num_blocks, block_size and on_evict. The pool calls on_evict with the number of a cached block
        that is about to lose what it stores. Raises UserError if num_blocks or block_size is below 1.
        """
        raise NotImplementedError("task 3.1.1")

    def reset(self) -> None:
        """Take all blocks from their holders and forget which ones are cached, as in a new pool.

        Does not call `on_evict`, so you must also clear a cache on top of the pool.
        """
        raise NotImplementedError("task 3.1.1")

    @property
    def num_free(self) -> int:
        """The number of blocks without a holder, cached blocks included."""
        raise NotImplementedError("task 3.1.1")

    def allocate(self, count: int) -> list[int]:
        """Take the first `count` blocks of the queue, give each one holder, and return them.

        A cached block is evicted: the pool calls `on_evict`, and the block is no longer cached. Raises
        OutOfBlocksError if fewer blocks are free, and ValueError for a negative count. An error changes
        nothing.
        """
        raise NotImplementedError("task 3.1.1")

    def share(self, blocks: Sequence[int]) -> None:
        """Add one holder to each of `blocks`. Cached blocks that were free leave the queue.

        Raises ValueError for a block that is neither held nor cached, because what it stores belongs to no
        request. An error changes nothing.
        """
        raise NotImplementedError("task 3.1.1")

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`, the blocks of one request in the order of its tokens.

        Blocks that have no holder left become free, in reverse order. Cached blocks join the end of the
        queue, so that the last block of a chain is evicted before the blocks that it builds on. The others
        join the front. Raises ValueError if a block has fewer holders than would be taken. An error changes
        nothing.
        """
        raise NotImplementedError("task 3.1.1")

    def ref_count(self, block: int) -> int:
        """Returns how many holders `block` has. Raises ValueError if there is no such block."""
        raise NotImplementedError("task 3.1.1")

    def mark_cached(self, block: int) -> None:
        """Let `block` keep what it stores after its last holder frees it, until it is allocated again.

        Raises ValueError for a block without a holder.
        """
        raise NotImplementedError("task 3.1.1")

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises RuntimeError unless `tables`, the blocks of every request, explain every holder of a block.

        The message names the first block that more or fewer tables hold than it has holders, or that is
        both held and free, or neither.
        """
        raise NotImplementedError("task 3.1.1")
