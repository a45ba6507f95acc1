"""The KV cache manager: which blocks a sequence has, needs, shares and gives back."""

from collections.abc import Iterator, Mapping, Sequence

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import TokenSequence


class KVCacheManager:
    """Allocates blocks of a pool to sequences, and shares the cached ones between them."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        """Without a prefix cache every sequence computes all of its tokens. Sets pool and prefix_cache."""
        raise NotImplementedError("task 3.4.3")

    def num_blocks_needed(self, sequence: TokenSequence, num_new_tokens: int) -> int:
        """How many more blocks `num_new_tokens` more computed tokens need."""
        raise NotImplementedError("task 3.4.3")

    def num_blocks_to_finish(self, sequence: TokenSequence) -> int:
        """How many more blocks are needed until all known tokens are computed."""
        raise NotImplementedError("task 3.4.3")

    def extend(self, sequences: Sequence[TokenSequence]) -> bool:
        """Allocate, where one is needed, the block of one token after the known ones (task 3.7.2 on).

        Returns False and allocates nothing when there are not enough free blocks.
        """
        raise NotImplementedError("task 3.7.2")

    def match(self, sequence: TokenSequence, reclaimable: Mapping[int, int]) -> tuple[int, int, bool]:
        """What a waiting sequence finds in the prefix cache; changes and counts nothing.

        Returns (cached tokens, blocks it takes from the free ones until its known tokens are computed,
        whether it would then wait for a block that another sequence computes). `reclaimable[block]` counts
        holders that can be preempted; a block with no other holder counts as free.
        """
        raise NotImplementedError("task 3.4.3")

    def admissible(
        self, candidates: Sequence[TokenSequence], running: Sequence[TokenSequence]
    ) -> Iterator[tuple[TokenSequence, int, bool]]:
        """Yield `candidates`, in order, as long as there are blocks for all their known tokens.

        Blocks that running sequences still need for their known tokens are not available: otherwise prompts
        would be started only to be preempted. The candidates are of one priority class; blocks of running
        sequences of less urgent classes count as free. Yields (sequence, cached tokens, whether it would
        wait for a block that another sequence computes).
        """
        raise NotImplementedError("task 3.4.3")

    def attach_cached(self, sequence: TokenSequence) -> bool:
        """Give a running sequence the cached blocks that come next.

        Returns whether it now waits for a block that another sequence computes; if not, it reserves the
        blocks that it will compute. The tokens of attached blocks count as computed, and before the first
        preemption as cached. Does nothing while the computed tokens end inside a block.
        """
        raise NotImplementedError("task 3.4.3")

    def register(self, sequence: TokenSequence) -> None:
        """Enter the blocks that the sequence's computed tokens have filled into the prefix cache."""
        raise NotImplementedError("task 3.4.3")

    def release(self, sequence: TokenSequence) -> None:
        """Free all blocks and reservations of a sequence; its `block_ids` is empty afterwards."""
        raise NotImplementedError("task 3.4.3")
