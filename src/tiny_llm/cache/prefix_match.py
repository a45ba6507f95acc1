"""One live request's way along the prefix cache: what it shares, waits for, computes and gives."""

from collections.abc import Sequence

from .prefix_cache import PrefixCache


class PrefixMatch:
    """A request's place among the full blocks of its tokens; `num_blocks` of them lie behind it.

    The request takes what is cached, waits for what another live request is about to compute, claims
    the rest and computes it: equal prefixes in flight are computed once. Whoever waits at a block waits
    for a request that is not before that block's start, so that no two wait for each other.
    """

    def __init__(
        self,
        cache: PrefixCache,
        token_ids: Sequence[int],
        is_counted: bool = True,
        rank: int = 0,
    ) -> None:
        """At the start of `token_ids`, all tokens known now; takes and claims nothing.

        Sets num_blocks = 0 and rank, the number of the sequence's priority class. With `is_counted` the
        first `acquire` adds this request to the counters of `cache`: its tokens and the blocks that may be
        found, and every `acquire` what was found. Reservations do not hold against more urgent classes.
        """
        raise NotImplementedError("task 3.3.2")

    @property
    def is_past_sharing(self) -> bool:
        """Whether no block is left that could be taken: what follows is this request's own to compute."""
        raise NotImplementedError("task 3.3.2")

    @property
    def is_waiting(self) -> bool:
        """Whether the first block ahead that is not cached is claimed by another request."""
        raise NotImplementedError("task 3.3.2")

    def match(self) -> list[int]:
        """The cached blocks that come next, in order; holds and counts nothing."""
        raise NotImplementedError("task 3.3.2")

    def acquire(self) -> list[int]:
        """The cached blocks that come next, shared with this request from now on; they lie behind it then.

        Every block that is returned has one more holder, to be freed by the caller.
        """
        raise NotImplementedError("task 3.3.2")

    def reserve(self) -> None:
        """Announce that this request will compute its remaining blocks, as far as it need not wait for them.

        Takes O(1) when the next block is claimed by this request already.
        """
        raise NotImplementedError("task 3.3.2")

    def register(self, token_ids: Sequence[int], block: int) -> None:
        """The next block is computed: `block`, which the caller holds, has the full block of `token_ids`.

        Others may take it from now on; a claim on it is fulfilled.
        """
        raise NotImplementedError("task 3.3.2")

    def release(self) -> None:
        """The request computes no more: its claims go, and whoever waited for them computes instead."""
        raise NotImplementedError("task 3.3.2")
