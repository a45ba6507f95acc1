"""Which blocks of the KV cache are held, and by how many; it counts numbers of blocks and holds no arrays."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from tiny_llm_lab.types import UserError


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
        if num_blocks < 1 or block_size < 1:
            raise UserError(
                f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing: both must be 1 or more"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict = on_evict
        self._ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, the ones that have been free longest first; each has one holder then.

        A cached one is evicted: it is not cached any more, and `on_evict` is told. Raises
        OutOfBlocksError when fewer are free, and ValueError for a negative count; nothing is changed then.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            self._evict(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add one holder to each of `blocks`; cached blocks that nobody holds stop being free.

        Raises ValueError for a block that is neither held nor cached: what is stored in it is nobody's.
        Nothing is changed then.
        """
        for block in blocks:
            if self.ref_count(block) == 0 and block not in self._cached:
                raise ValueError(f"block {block} is free and not cached: there is nothing to share")
        for block in blocks:
            self._ref_counts[block] += 1
            self._free.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`, the blocks of one request in the order of its tokens.

        Those without a holder left become free in reverse order, so that of a chain of cached blocks the
        last is evicted before those that it builds on. Raises ValueError when a block has fewer holders
        than would be taken; nothing is changed then.
        """
        for block, count in Counter(blocks).items():
            if self.ref_count(block) < count:
                raise ValueError(f"block {block} is freed {count} times, but {self.ref_count(block)} hold it")
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None

    def ref_count(self, block: int) -> int:
        """How many hold `block`. Raises ValueError for a number that is no block's."""
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"there is no block {block} in a pool of {self.num_blocks}")
        return self._ref_counts[block]

    def mark_cached(self, block: int) -> None:
        """Let `block` keep what is stored in it after its last holder has gone, until it is evicted.

        Raises ValueError for a block that nobody holds.
        """
        if self.ref_count(block) == 0:
            raise ValueError(f"block {block} is free: only what somebody computed can be kept")
        self._cached.add(block)

    def is_cached(self, block: int) -> bool:
        """Whether `block` keeps what is stored in it after its last holder has gone."""
        return block in self._cached

    def writable(self, block: int) -> int:
        """A block that the caller, one of the holders of `block`, may write to: copy on write.

        `block` itself when nobody else holds it; it is not cached any more then, and `on_evict` is told
        if it was. Else a new block, to which the caller copies what is stored: the caller holds that one
        and no longer `block`. Raises ValueError when nobody holds `block`, OutOfBlocksError when none is
        free.
        """
        if self.ref_count(block) == 0:
            raise ValueError(f"block {block} is free: allocate it before writing to it")
        if self._ref_counts[block] == 1:
            self._evict(block)
            return block
        (new,) = self.allocate(1)
        self.free([block])
        return new

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless `tables`, the blocks of every request, are exactly who holds what.

        The message names the first block that is held by more or fewer tables than it has holders, or
        that is held and free at once, or neither.
        """
        held = Counter(block for table in tables for block in table)
        if strange := [block for block in held if not 0 <= block < self.num_blocks]:
            raise RuntimeError(f"a table has block {strange[0]}, which the pool of {self.num_blocks} has not")
        for block, count in enumerate(self._ref_counts):
            if count != held[block]:
                raise RuntimeError(f"block {block} counts {count} holders, but {held[block]} tables have it")
            if (count == 0) != (block in self._free):
                raise RuntimeError(
                    f"block {block} has {count} holders and is {'' if count else 'not '}on the free list"
                )

    def _evict(self, block: int) -> None:
        if block in self._cached:
            self._cached.remove(block)
            if self.on_evict is not None:
                self.on_evict(block)
