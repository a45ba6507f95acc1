"""Which blocks of the KV cache are held, and by how many holders. Only block numbers, no arrays."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from tiny_llm_lab.types import UserError


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
        if num_blocks < 1 or block_size < 1:
            raise UserError(f"num_blocks and block_size must be 1 or more, not {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict = on_evict
        self.reset()

    def reset(self) -> None:
        """Take all blocks from their holders and forget which ones are cached, as in a new pool.

        Does not call `on_evict`, so you must also clear a cache on top of the pool.
        """
        self._ref_counts = [0] * self.num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(self.num_blocks))
        self._cached: set[int] = set()

    @property
    def num_free(self) -> int:
        """The number of blocks without a holder, cached blocks included."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take the first `count` blocks of the queue, give each one holder, and return them.

        A cached block is evicted: the pool calls `on_evict`, and the block is no longer cached. Raises
        OutOfBlocksError if fewer blocks are free, and ValueError for a negative count. An error changes
        nothing.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks needed, {len(self._free)} of {self.num_blocks} are free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            if block in self._cached:
                if self.on_evict is not None:
                    self.on_evict(block)
                self._cached.remove(block)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add one holder to each of `blocks`. Cached blocks that were free leave the queue.

        Raises ValueError for a block that is neither held nor cached, because what it stores belongs to no
        request. An error changes nothing.
        """
        for block in blocks:
            if self.ref_count(block) == 0 and block not in self._cached:
                raise ValueError(f"block {block} is free and not cached: there is nothing to share")
        for block in blocks:
            self._ref_counts[block] += 1
            self._free.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of `blocks`, the blocks of one request in the order of its tokens.

        Blocks that have no holder left become free, in reverse order. Cached blocks join the end of the
        queue, so that the last block of a chain is evicted before the blocks that it builds on. The others
        join the front. Raises ValueError if a block has fewer holders than would be taken. An error changes
        nothing.
        """
        for block, count in Counter(blocks).items():
            if self.ref_count(block) < count:
                raise ValueError(
                    f"block {block} is freed {count} times but has {self.ref_count(block)} holders"
                )
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._cached)

    def ref_count(self, block: int) -> int:
        """Returns how many holders `block` has. Raises ValueError if there is no such block."""
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} is not in a pool of {self.num_blocks} blocks")
        return self._ref_counts[block]

    def mark_cached(self, block: int) -> None:
        """Let `block` keep what it stores after its last holder frees it, until it is allocated again.

        Raises ValueError for a block without a holder.
        """
        if self.ref_count(block) == 0:
            raise ValueError(f"block {block} is free: only a block with a holder can be kept")
        self._cached.add(block)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises RuntimeError unless `tables`, the blocks of every request, explain every holder of a block.

        The message names the first block that more or fewer tables hold than it has holders, or that is
        both held and free, or neither.
        """
        held = Counter(block for table in tables for block in table)
        if strange := [block for block in held if not 0 <= block < self.num_blocks]:
            raise RuntimeError(f"a table has block {strange[0]}, not in the pool of {self.num_blocks}")
        for block, count in enumerate(self._ref_counts):
            if count != held[block]:
                raise RuntimeError(f"block {block} counts {count} holders, but {held[block]} tables have it")
            if (count == 0) != (block in self._free):
                raise RuntimeError(
                    f"block {block} has {count} holders and is {'' if count else 'not '}on the free list"
                )
