"""The KV cache manager: which blocks a sequence has, needs, shares and frees."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tiny_llm_lab.types.scheduling.no_states import NO_STATES, NoStates, Planned

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from ..cache.prefix_match import PrefixMatch
from .sequence import TokenSequence


class KVCacheManager:
    """Allocates blocks of a pool to sequences, and shares the cached ones between them."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        """Sets pool and prefix_cache. Without a prefix cache every sequence computes all of its tokens.

        From task 4.4.4 on: sets states = NO_STATES, which are told what happens to the sequences.
        """
        self.pool = pool
        self.prefix_cache = prefix_cache
        self._matches: dict[str, PrefixMatch] = {}
        self.states: NoStates = NO_STATES

    def num_blocks_needed(self, sequence: TokenSequence, num_new_tokens: int) -> int:
        """Returns how many more blocks the sequence needs to compute `num_new_tokens` more tokens."""
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        return max(0, -(-num_tokens // self.pool.block_size) - len(sequence.block_ids))

    def num_blocks_to_finish(self, sequence: TokenSequence) -> int:
        """Returns how many more blocks the sequence needs until all its known tokens are computed."""
        return self.num_blocks_needed(sequence, sequence.num_tokens - sequence.num_computed_tokens)

    def extend(self, sequences: Sequence[TokenSequence]) -> bool:
        """Allocate a block for one token after each sequence's known tokens, if it needs one (task 3.7.2 on).

        Returns False and allocates nothing if there are not enough free blocks.
        """
        needed = [
            self.num_blocks_needed(each, each.num_tokens + 1 - each.num_computed_tokens) for each in sequences
        ]
        if sum(needed) > self.pool.num_free:
            return False
        for sequence, count in zip(sequences, needed, strict=True):
            sequence.block_ids += self.pool.allocate(count) if count else []
        return True

    def reserve(self, sequence: TokenSequence, num_tokens: int) -> int:
        """Allocate free blocks for up to `num_tokens` draft tokens; returns for how many (task 3.9.6 on).

        From task 4.4.5 on: for none, unless there is a state to go back to.
        """
        size, num_known = self.pool.block_size, sequence.num_tokens
        num_places = (len(sequence.block_ids) + self.pool.num_free) * size
        num_tokens = min(num_tokens, num_places - num_known)
        if num_tokens <= 0 or not self.states.may_draft(sequence):
            return 0
        missing = num_known + num_tokens - sequence.num_computed_tokens
        if needed := self.num_blocks_needed(sequence, missing):
            sequence.block_ids += self.pool.allocate(needed)
        return num_tokens

    def match(self, sequence: TokenSequence, reclaimable: Mapping[int, int]) -> tuple[int, int, bool]:
        """Returns what a waiting sequence would find in the prefix cache; changes and counts nothing.

        Three values: how many of its tokens are cached, how many free blocks it takes until its known tokens
        are computed, and whether it would wait for a block that another sequence computes.
        `reclaimable[block]` counts holders that can be preempted; a block with no other holder counts as
        free.
        From task 4.4.4 on: asks for the snapshot that the sequence could go on from.
        """
        num_needed = self.num_blocks_to_finish(sequence)
        if not self.prefix_cache or sequence.skip_reading_prefix_cache:
            return 0, num_needed, False
        if not (match := self._matches.get(sequence.request_id)):
            is_counted = sequence.num_preemptions == 0
            tokens, salt = sequence.pictures.keys(sequence.token_ids), sequence.cache_salt
            match = PrefixMatch(self.prefix_cache, tokens, is_counted, sequence.rank, salt)
            self._matches[sequence.request_id] = match
        self.states.ask(match)
        blocks = match.match()
        num_held = sum(self.pool.ref_count(block) > reclaimable.get(block, 0) for block in blocks)
        return len(blocks) * self.pool.block_size, num_needed - num_held, match.is_waiting

    def admissible(
        self, candidates: Sequence[TokenSequence], running: Sequence[TokenSequence]
    ) -> Iterator[tuple[TokenSequence, int, bool]]:
        """Yield `candidates`, in order, as long as there are blocks for all their known tokens.

        Blocks that running sequences still need for their known tokens are not available, because a prompt
        that took them would start only to be preempted. The candidates are of one priority class; blocks of
        running sequences of less urgent classes count as free. Yields (sequence, cached tokens, whether it
        would wait for a block that another sequence computes).
        From task 4.4.4 on: as long as there are states for them too.
        """
        if not candidates:
            return
        rank = candidates[0].rank
        preemptible = [sequence for sequence in running if sequence.rank > rank]
        reclaimable = Counter(block for sequence in preemptible for block in sequence.block_ids)
        room = self.pool.num_free + sum(self.pool.ref_count(i) == n for i, n in reclaimable.items())
        room -= sum(self.num_blocks_to_finish(each) for each in running[: len(running) - len(preemptible)])
        num_states = self.states.snapshots.num_free + len(preemptible)
        for sequence in candidates:
            num_cached, num_blocks, must_wait = self.match(sequence, reclaimable)
            match, num_found = self._matches.get(sequence.request_id), num_cached // self.pool.block_size
            num_states -= self.states.num_needed(match, num_found)
            room -= num_blocks
            if min(room, num_states) < 0:
                return
            yield sequence, num_cached, must_wait

    def has_states(self, sequence: TokenSequence, num_cached: int) -> bool:
        """Whether there are states for a sequence that starts after `num_cached` tokens (task 4.4.4 on)."""
        match, num_found = self._matches.get(sequence.request_id), num_cached // self.pool.block_size
        return self.states.snapshots.num_free >= self.states.num_needed(match, num_found)

    def attach_cached(self, sequence: TokenSequence) -> bool:
        """Give a running sequence the cached blocks that come next.

        Returns whether it now waits for a block that another sequence computes. If it does not, it reserves
        the blocks that it will compute. The tokens of attached blocks count as computed and, before the first
        preemption, as cached. Does nothing while the computed tokens end inside a block.
        """
        match, size = self._matches.get(sequence.request_id), self.pool.block_size
        if not match or match.is_past_sharing or sequence.num_computed_tokens % size:
            self.states.start(sequence)
            return False
        blocks = match.acquire()
        sequence.block_ids += blocks
        sequence.num_computed_tokens += len(blocks) * size
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens += len(blocks) * size
        if blocks:
            self.states.resume(sequence, match)
        self.states.start(sequence)
        if not (waits := match.is_waiting):
            match.reserve()
        return waits

    def plan(self, planned: Planned) -> None:
        """Set `states` of the sequences of a step (from task 4.4.4 on)."""
        self.states.plan(planned, self._borders)

    def _borders(self, sequence: TokenSequence, start: int, end: int) -> Sequence[int]:
        match = self._matches.get(sequence.request_id)
        return match.borders(start, end) if match else ()

    def register(self, sequence: TokenSequence) -> None:
        """Add the blocks that the sequence's computed tokens have filled to the prefix cache."""
        if match := self._matches.get(sequence.request_id):
            size = self.pool.block_size
            for i in range(match.num_blocks, sequence.num_computed_tokens // size):
                tokens = sequence.tokens_between(i * size, (i + 1) * size)
                match.register(sequence.pictures.keys(tokens, i * size), sequence.block_ids[i])
                self.states.keep(sequence, (i + 1) * size, match)
        self.states.settle(sequence)

    def release(self, sequence: TokenSequence) -> None:
        """Free all blocks and reservations of a sequence, and leave its `block_ids` empty."""
        if match := self._matches.pop(sequence.request_id, None):
            match.release()
        self.states.release(sequence)
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
