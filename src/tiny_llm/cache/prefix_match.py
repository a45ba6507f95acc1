"""A live request among the cached prefixes: blocks that it shares, waits for, computes and offers."""

from collections.abc import Sequence

from .prefix_cache import PrefixCache


class PrefixMatch:
    """The full blocks of a request's tokens, of which the first `num_blocks` are acquired or registered.

    A request acquires the blocks that are cached, waits for those that another live request has reserved,
    reserves the rest and computes them: equal prefixes in flight are computed once. A request that reserved
    a block can wait only for an earlier one, so that no two requests wait for each other.
    """

    def __init__(
        self,
        cache: PrefixCache,
        token_ids: Sequence[int],
        is_counted: bool = True,
        rank: int = 0,
    ) -> None:
        """Start before the first block of `token_ids`, all tokens known now; acquire and reserve nothing.

        Sets num_blocks = 0 and rank, the number of the priority class, 0 the most urgent. With `is_counted`
        the first `acquire` adds this request to the counters of `cache`: its tokens and the blocks that may
        be found; every `acquire` adds what was found. A request of a lower rank does not wait for this one's
        reservations: its `reserve` takes them over.
        """
        raise NotImplementedError("task 3.3.2")

    @property
    def is_past_sharing(self) -> bool:
        """Whether no further block can be acquired: this request computes all that follows."""
        raise NotImplementedError("task 3.3.2")

    @property
    def is_waiting(self) -> bool:
        """Whether the first block ahead that is not cached is reserved by another request."""
        raise NotImplementedError("task 3.3.2")

    def match(self) -> list[int]:
        """The cached blocks that come next, in order, up to the first that is not cached.

        Holds and counts nothing. Keys behind a found one compare in O(block_size): they continue the stored
        key.
        """
        raise NotImplementedError("task 3.3.2")

    def acquire(self) -> list[int]:
        """The cached blocks that come next, held by this request from now on; num_blocks counts them.

        Each has one more holder, to be freed by the caller.
        """
        raise NotImplementedError("task 3.3.2")

    def reserve(self) -> None:
        """Reserve the missing blocks ahead, which this request will compute, except those it would wait for.

        Only blocks that may be found are reserved, so never the one with the last token of all (see
        `PrefixCache.keys`). Takes O(1) when this request has reserved the next block already.
        """
        raise NotImplementedError("task 3.3.2")

    def register(self, token_ids: Sequence[int], block: int) -> None:
        """The next block is computed: `block`, which the caller holds, has the full block of `token_ids`.

        Other requests may acquire it from now on; its reservation ends. Blocks behind those of the prompt,
        which hold tokens of the answer, are registered in the same way.
        """
        raise NotImplementedError("task 3.3.2")

    def release(self) -> None:
        """End this request's reservations: requests that waited for those blocks compute them instead."""
        raise NotImplementedError("task 3.3.2")
