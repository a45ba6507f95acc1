"""Which blocks of the KV cache are held, and by how many; it counts numbers of blocks and holds no arrays."""

from collections.abc import Callable, Iterable, Sequence


class OutOfBlocksError(RuntimeError):
    """Fewer blocks are free than were asked for."""


class BlockPool:
    """Blocks 0 to num_blocks - 1 of `block_size` tokens each, with the number of holders of each.

    A block that nobody holds is free. Freed blocks queue up, the one that has been free longest first;
    in the beginning that is block 0, then 1. A block may be marked as cached: what is stored in it is
    worth keeping until somebody else needs the block. Every operation takes O(1) per block.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 32, on_evict: Callable[[int], None] | None = None
    ) -> None:
        """All blocks are free, none is cached. Sets num_blocks, block_size and on_evict.

        `on_evict` is called with the number of a cached block that is about to lose what is stored in it.
        Raises UserError when either number is below 1.
        """
        raise NotImplementedError("task 3.1.1")

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        raise NotImplementedError("task 3.1.1")

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, the ones that have been free longest first; each has one holder then.

        A cached one is evicted: it is not cached any more, and `on_evict` is told. Raises
        OutOfBlocksError when fewer are free, and ValueError for a negative count; nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def share(self, blocks: Sequence[int]) -> None:
        """Add one holder to each of `blocks`; cached blocks that nobody holds stop being free.

        Raises ValueError for a block that is neither held nor cached: what is stored in it is nobody's.
        Nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`, the blocks of one request in the order of its tokens.

        Those without a holder left become free in reverse order, so that of a chain of cached blocks the
        last is evicted before those that it builds on. Raises ValueError when a block has fewer holders
        than would be taken; nothing is changed then.
        """
        raise NotImplementedError("task 3.1.1")

    def ref_count(self, block: int) -> int:
        """How many hold `block`. Raises ValueError for a number that is no block's."""
        raise NotImplementedError("task 3.1.1")

    def mark_cached(self, block: int) -> None:
        """Let `block` keep what is stored in it after its last holder has gone, until it is evicted.

        Raises ValueError for a block that nobody holds.
        """
        raise NotImplementedError("task 3.1.1")

    def is_cached(self, block: int) -> bool:
        """Whether `block` keeps what is stored in it after its last holder has gone."""
        raise NotImplementedError("task 3.1.1")

    def writable(self, block: int) -> int:
        """A block that the caller, one of the holders of `block`, may write to: copy on write.

        `block` itself when nobody else holds it; it is not cached any more then, and `on_evict` is told
        if it was. Else a new block, to which the caller copies what is stored: the caller holds that one
        and no longer `block`. Raises ValueError when nobody holds `block`, OutOfBlocksError when none is
        free.
        """
        raise NotImplementedError("task 3.1.1")

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless `tables`, the blocks of every request, are exactly who holds what.

        The message names the first block that is held by more or fewer tables than it has holders, or
        that is held and free at once, or neither.
        """
        raise NotImplementedError("task 3.1.1")
