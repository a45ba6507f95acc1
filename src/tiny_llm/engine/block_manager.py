"""The KV cache manager: which blocks a sequence has, needs, shares and frees."""

from collections.abc import Iterator, Mapping, Sequence

from tiny_llm_lab.types.scheduling.no_states import Planned

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from .sequence import TokenSequence


class KVCacheManager:
    """Allocates blocks of a pool to sequences, and shares the cached ones between them."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        """Sets pool and prefix_cache. Without a prefix cache every sequence computes all of its tokens."""
        raise NotImplementedError("task 3.4.3")

    def num_blocks_needed(self, sequence: TokenSequence, num_new_tokens: int) -> int:
        """Returns how many more blocks the sequence needs to compute `num_new_tokens` more tokens."""
        raise NotImplementedError("task 3.4.3")

    def num_blocks_to_finish(self, sequence: TokenSequence) -> int:
        """Returns how many more blocks the sequence needs until all its known tokens are computed."""
        raise NotImplementedError("task 3.4.3")

    def extend(self, sequences: Sequence[TokenSequence]) -> bool:
        """Allocate a block for one token after each sequence's known tokens, if it needs one (task 3.7.2 on).

        Returns False and allocates nothing if there are not enough free blocks.
        """
        raise NotImplementedError("task 3.7.2")

    def reserve(self, sequence: TokenSequence, num_tokens: int) -> int:
        """Allocate free blocks for up to `num_tokens` draft tokens; returns for how many (task 3.9.6 on)."""
        raise NotImplementedError("task 3.9.6")

    def match(self, sequence: TokenSequence, reclaimable: Mapping[int, int]) -> tuple[int, int, bool]:
        """Returns what a waiting sequence would find in the prefix cache; changes and counts nothing.

        Three values: how many of its tokens are cached, how many free blocks it takes until its known tokens
        are computed, and whether it would wait for a block that another sequence computes.
        `reclaimable[block]` counts holders that can be preempted; a block with no other holder counts as
        free.
        """
        raise NotImplementedError("task 3.4.3")

    def admissible(
        self, candidates: Sequence[TokenSequence], running: Sequence[TokenSequence]
    ) -> Iterator[tuple[TokenSequence, int, bool]]:
        """Yield `candidates`, in order, as long as there are blocks for all their known tokens.

        Blocks that running sequences still need for their known tokens are not available, because a prompt
        that took them would start only to be preempted. The candidates are of one priority class; blocks of
        running sequences of less urgent classes count as free. Yields (sequence, cached tokens, whether it
        would wait for a block that another sequence computes).
        """
        raise NotImplementedError("task 3.4.3")

    def has_states(self, sequence: TokenSequence, num_cached: int) -> bool:
        """Whether there are states for a sequence that starts after `num_cached` tokens (task 4.4.4 on)."""
        raise NotImplementedError("task 4.4.4")

    def attach_cached(self, sequence: TokenSequence) -> bool:
        """Give a running sequence the cached blocks that come next.

        Returns whether it now waits for a block that another sequence computes. If it does not, it reserves
        the blocks that it will compute. The tokens of attached blocks count as computed and, before the first
        preemption, as cached. Does nothing while the computed tokens end inside a block.
        """
        raise NotImplementedError("task 3.4.3")

    def plan(self, planned: Planned) -> None:
        """Set `states` of the sequences of a step (from task 4.4.4 on)."""
        raise NotImplementedError("task 4.4.4")

    def register(self, sequence: TokenSequence) -> None:
        """Add the blocks that the sequence's computed tokens have filled to the prefix cache."""
        raise NotImplementedError("task 3.4.3")

    def release(self, sequence: TokenSequence) -> None:
        """Free all blocks and reservations of a sequence, and leave its `block_ids` empty."""
        raise NotImplementedError("task 3.4.3")
