"""A live request and the prefix cache: the blocks it shares, waits for, computes and registers."""

from collections.abc import Sequence

from .prefix_cache import BlockKey, PrefixCache


class PrefixMatch:
    """The full blocks of a request's tokens. The first `num_blocks` are acquired or registered.

    A request acquires the blocks that are cached, waits for the blocks that another live request has
    reserved, and reserves and computes the rest. Equal prefixes in flight are therefore computed once. A
    request that reserved a block can only wait for an earlier block, so no two requests wait for each other.
    """

    def __init__(
        self,
        cache: PrefixCache,
        token_ids: Sequence[int],
        is_counted: bool = True,
        rank: int = 0,
        salt: str = "",
    ) -> None:
        """Start before the first block of `token_ids`, all tokens known now. Acquires and reserves nothing.

        Sets num_blocks = 0 and rank, the number of the priority class (0 is the most urgent). With
        `is_counted` the first `acquire` adds this request's tokens, and its blocks that may be found, to the
        counters of `cache`, and every `acquire` adds what it found. A request of a lower rank does not wait
        for this request's reservations: its `reserve` takes them over. Only requests of the same `salt` share
        blocks.
        """
        raise NotImplementedError("task 3.3.2")

    @property
    def is_past_sharing(self) -> bool:
        """Whether no further block can be acquired, so that this request computes everything that follows."""
        raise NotImplementedError("task 3.3.2")

    @property
    def last_key(self) -> BlockKey:
        """The key of block `num_blocks` - 1, which is acquired or registered (from task 4.4.3 on)."""
        raise NotImplementedError("task 4.4.3")

    def found_key(self, num_found: int) -> BlockKey | None:
        """The key of the last of the next `num_found` blocks; None for no blocks (from task 4.4.3 on)."""
        raise NotImplementedError("task 4.4.3")

    @property
    def is_waiting(self) -> bool:
        """Whether another request has reserved the next block that is not cached."""
        raise NotImplementedError("task 3.3.2")

    def match(self) -> list[int]:
        """Returns the cached blocks that come next, in order, up to the first block that is not cached.

        Holds and counts nothing. Once a key is found, comparing the next takes O(block_size), because it
        continues the stored key.
        """
        raise NotImplementedError("task 3.3.2")

    def acquire(self) -> list[int]:
        """Returns the cached blocks that come next, now held by this request; adds them to num_blocks.

        Each has one more holder, which the caller must free.
        """
        raise NotImplementedError("task 3.3.2")

    def ask(self) -> None:
        """Ask for a snapshot after the last block that is cached or reserved by another (from task 4.4.3 on).

        Whoever computes that block makes it: the other request, or this one. The owner is id(self).
        """
        raise NotImplementedError("task 4.4.3")

    def borders(self, start: int, end: int) -> list[int]:
        """Returns after how many of the tokens `start` + 1 to `end` to keep a snapshot (from task 4.4.3 on).

        Ends of full blocks, rising: of the last block that may be found (see `PrefixCache.keys`), of every
        block that someone asked for, every snapshots.every tokens, and the last one in this span if it comes
        after all that may be found.
        """
        raise NotImplementedError("task 4.4.3")

    def reserve(self) -> None:
        """Reserve the missing blocks that this request will compute, except blocks it would wait for.

        Reserves only blocks that may be found, so never the block with the last token (see
        `PrefixCache.keys`). Takes O(1) if this request has already reserved the next block.
        """
        raise NotImplementedError("task 3.3.2")

    def register(self, token_ids: Sequence[int], block: int) -> None:
        """Register the next computed block: `block`, which the caller holds, stores all of `token_ids`.

        Other requests may now acquire it, and its reservation ends. Blocks after the prompt's, which store
        tokens of the answer, are registered in the same way.
        """
        raise NotImplementedError("task 3.3.2")

    def release(self) -> None:
        """End this request's reservations. Requests that waited for those blocks compute them instead."""
        raise NotImplementedError("task 3.3.2")
