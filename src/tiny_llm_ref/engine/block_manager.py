"""Which blocks a request has, lacks, shares and gives back: between the scheduler, the pool and the cache."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..cache.block_pool import BlockPool
from ..cache.prefix_cache import PrefixCache
from ..cache.prefix_match import PrefixMatch
from .sequence import ScheduledRequest


class BlockTables:
    """What requests lack of blocks, find in the prefix cache, let others find, and give back."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        """Without a cache every request computes all of its tokens. Sets pool and prefix_cache."""
        self.pool = pool
        self.prefix_cache = prefix_cache
        self._prefixes: dict[str, PrefixMatch] = {}

    def num_lacking(self, request: ScheduledRequest, num_new_tokens: int) -> int:
        """How many blocks it lacks to have `num_new_tokens` more computed."""
        num_tokens = request.num_computed_tokens + num_new_tokens
        return max(0, -(-num_tokens // self.pool.block_size) - len(request.block_ids))

    def num_promised(self, request: ScheduledRequest) -> int:
        """How many blocks it lacks to have all of its known tokens computed."""
        return self.num_lacking(request, request.num_tokens - request.num_computed_tokens)

    def extend(self, requests: Sequence[ScheduledRequest]) -> bool:
        """Give each the block, if it lacks one, for a token behind its known ones (from task 3.4.10 on).

        False, and nobody gets any, when there are not enough free ones.
        """
        lacking = [self.num_lacking(r, r.num_tokens + 1 - r.num_computed_tokens) for r in requests]
        if sum(lacking) > self.pool.num_free:
            return False
        for request, count in zip(requests, lacking, strict=True):
            request.block_ids += self.pool.allocate(count) if count else []
        return True

    def peek(self, request: ScheduledRequest, num_lent: Mapping[int, int]) -> tuple[int, int, bool]:
        """What a waiting request would find in the cache: cached tokens, the blocks it takes from the free
        ones until its known tokens are computed, and whether it would then wait for another's block.

        Holds and counts nothing. By block, `num_lent` says how many of its holders will give it back as
        soon as it is wanted: a block of nobody else is as good as free.
        """
        num_lacking = self.num_promised(request)
        if self.prefix_cache is None:
            return 0, num_lacking, False
        if (prefix := self._prefixes.get(request.request_id)) is None:
            is_counted = request.num_preemptions == 0
            prefix = PrefixMatch(self.prefix_cache, request.token_ids, is_counted, request.is_batch_class)
            self._prefixes[request.request_id] = prefix
        blocks = prefix.match()
        num_held = sum(self.pool.ref_count(block) > num_lent.get(block, 0) for block in blocks)
        return len(blocks) * self.pool.block_size, num_lacking - num_held, prefix.is_waiting

    def fitting(
        self, candidates: Sequence[ScheduledRequest], running: Sequence[ScheduledRequest]
    ) -> Iterator[tuple[ScheduledRequest, int, bool]]:
        """Those of `candidates`, in order, who find blocks for all known tokens, up to the first without.

        The blocks are there beyond those that running requests still need for theirs: else prompts would be
        begun only to be preempted. With each come the cached tokens, and whether it would wait for another's
        block. The candidates are of one class: if they are interactive, all blocks of batch-class requests
        are there for them.
        """
        if not candidates:
            return
        is_batch_class = candidates[0].is_batch_class
        lenders = [] if is_batch_class else [request for request in running if request.is_batch_class]
        num_lent = Counter(block for request in lenders for block in request.block_ids)
        room = self.pool.num_free + sum(self.pool.ref_count(i) == n for i, n in num_lent.items())
        room -= sum(self.num_promised(r) for r in running[: len(running) - len(lenders)])
        for request in candidates:
            num_cached, num_blocks, is_follower = self.peek(request, num_lent)
            room -= num_blocks
            if room < 0:
                return
            yield request, num_cached, is_follower

    def follow(self, request: ScheduledRequest) -> bool:
        """Give a running request the cached blocks that come next; whether it waits for another's block.

        The blocks' tokens count as computed, and as cached before its first preemption. Unless it
        waits, it reserves what it will compute itself. A request inside of a block goes on by itself.
        """
        prefix, size = self._prefixes.get(request.request_id), self.pool.block_size
        if prefix is None or prefix.is_past_sharing or request.num_computed_tokens % size:
            return False
        blocks = prefix.acquire()
        request.block_ids += blocks
        request.num_computed_tokens += len(blocks) * size
        if request.num_preemptions == 0:
            request.num_cached_tokens += len(blocks) * size
        if prefix.is_waiting:
            return True
        prefix.reserve()
        return False

    def register(self, request: ScheduledRequest) -> None:
        """Let others find the blocks that its computed tokens have filled."""
        if (prefix := self._prefixes.get(request.request_id)) is not None:
            size = self.pool.block_size
            for i in range(prefix.num_blocks, request.num_computed_tokens // size):
                prefix.register(request.tokens_between(i * size, (i + 1) * size), request.block_ids[i])

    def release(self, request: ScheduledRequest) -> None:
        """Give all of its blocks and reservations back; `block_ids` is empty then."""
        if prefix := self._prefixes.pop(request.request_id, None):
            prefix.release()
        self.pool.free(request.block_ids)
        request.block_ids = []
