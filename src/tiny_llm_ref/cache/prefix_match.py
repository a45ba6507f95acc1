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
        self.num_blocks = 0
        self.rank = rank
        self._cache = cache
        self._keys = cache.keys(token_ids, salt)
        self._parent = cache.before(salt)
        self._num_shareable = len(self._keys)
        self._num_tokens = len(token_ids)
        self._is_counted = is_counted
        self._is_started = False

    @property
    def is_past_sharing(self) -> bool:
        """Whether no further block can be acquired, so that this request computes everything that follows."""
        return self.num_blocks >= self._num_shareable

    @property
    def last_key(self) -> BlockKey:
        """The key of block `num_blocks` - 1, which is acquired or registered (from task 4.4.3 on)."""
        return self._keys[self.num_blocks - 1]

    def found_key(self, num_found: int) -> BlockKey | None:
        """The key of the last of the next `num_found` blocks; None for no blocks (from task 4.4.3 on)."""
        return self._keys[self.num_blocks + num_found - 1] if num_found else None

    @property
    def is_waiting(self) -> bool:
        """Whether another request has reserved the next block that is not cached.

        From task 4.4.3 on: whether another one has reserved any block from the end of `match()` to the last
        that is cached or reserved by others, even if the block is cached.
        """
        for key in self._keys[self.num_blocks + len(self.match()) : self._num_shareable]:
            if self._is_reserved_by_another(key):
                return True
            if self._cache.find(key) is None:
                return False
        return False

    def match(self) -> list[int]:
        """Returns the cached blocks that come next, in order, up to the first block that is not cached.

        Holds and counts nothing. Once a key is found, comparing the next takes O(block_size), because it
        continues the stored key.
        From task 4.4.3 on: up to the last of them after which there is a snapshot.
        """
        blocks = self._cached()
        while blocks and not self._cache.snapshots.has(self._keys[self.num_blocks + len(blocks) - 1]):
            blocks.pop()
        return blocks

    def _cached(self) -> list[int]:
        blocks = []
        for i in range(self.num_blocks, self._num_shareable):
            found = self._cache.find(self._keys[i])
            if found is None:
                break
            blocks.append(found[1])
            # Later keys then share their parent object with the stored keys, so comparing stays short.
            self._keys[i] = found[0]
            if i + 1 < self._num_shareable:
                self._keys[i + 1].parent = found[0]
        return blocks

    def acquire(self) -> list[int]:
        """Returns the cached blocks that come next, now held by this request; adds them to num_blocks.

        Each has one more holder, which the caller must free.
        """
        blocks = self.match()
        self._cache.pool.share(blocks)
        if self._is_counted:
            if not self._is_started:
                self._cache.num_query_blocks += self._num_shareable
                self._cache.num_query_tokens += self._num_tokens
            self._cache.num_hit_blocks += len(blocks)
            self._cache.num_hit_tokens += len(blocks) * self._cache.pool.block_size
        self._is_started = True
        for key in self._keys[self.num_blocks : self.num_blocks + len(blocks)]:
            self._drop_reservation(key)  # another request that was inside this block was faster
        self.num_blocks += len(blocks)
        return blocks

    def ask(self) -> None:
        """Ask for a snapshot after the last block that is cached or reserved by another (from task 4.4.3 on).

        Whoever computes that block makes it: the other request, or this one. The owner is id(self).
        """
        if (junction := self._shared_end()) > self.num_blocks:
            self._cache.snapshots.ask(id(self), self._keys[junction - 1])

    def borders(self, start: int, end: int) -> list[int]:
        """Returns after how many of the tokens `start` + 1 to `end` to keep a snapshot (from task 4.4.3 on).

        Ends of full blocks, rising: of the last block that may be found (see `PrefixCache.keys`), of every
        block that someone asked for, every snapshots.every tokens, and the last one in this span if it comes
        after all that may be found.
        """
        size, snapshots = self._cache.pool.block_size, self._cache.snapshots
        newest, known = end // size, self._num_shareable
        return [
            i * size
            for i in range(start // size + 1, newest + 1)
            if i * size % snapshots.every == 0
            or i == (newest if i > known else known)
            or (i < known and snapshots.is_wanted(self._keys[i - 1]))
        ]

    def reserve(self) -> None:
        """Reserve the missing blocks that this request will compute, except blocks it would wait for.

        Reserves only blocks that may be found, so never the block with the last token (see
        `PrefixCache.keys`). Takes O(1) if this request has already reserved the next block.
        From task 4.4.3 on: also reserves cached blocks after which a snapshot is wanted.
        """
        rest = self._keys[self.num_blocks : self._num_shareable]
        if rest and self._cache.reservations.get(rest[0]) is not self:
            for key in rest:
                is_made = self._cache.find(key) is None or self._cache.snapshots.is_wanted(key)
                if is_made and not self._is_reserved_by_another(key):
                    self._cache.reservations[key] = self

    def register(self, token_ids: Sequence[int], block: int) -> None:
        """Register the next computed block: `block`, which the caller holds, stores all of `token_ids`.

        Other requests may now acquire it, and its reservation ends. Blocks after the prompt's, which store
        tokens of the answer, are registered in the same way.
        """
        if self.num_blocks == len(self._keys):
            self._keys.append(self._cache.key(self._keys[-1] if self._keys else self._parent, token_ids))
        key = self._keys[self.num_blocks]
        self._cache.insert(key, block)
        self._drop_reservation(key)
        self.num_blocks += 1

    def release(self) -> None:
        """End this request's reservations. Requests that waited for those blocks compute them instead.

        From task 4.4.3 on: also withdraws what it asked for.
        """
        self._cache.snapshots.withdraw(id(self))
        for key in self._keys[self.num_blocks : self._num_shareable]:
            self._drop_reservation(key)

    def _shared_end(self) -> int:
        """How many of the keys are acquired, cached, or reserved by another request, from the first on."""
        i = self.num_blocks + len(self._cached())
        while i < self._num_shareable and (
            self._is_reserved_by_another(self._keys[i]) or self._cache.find(self._keys[i])
        ):
            i += 1
        return i

    def _is_reserved_by_another(self, key: BlockKey) -> bool:
        owner = self._cache.reservations.get(key, self)
        assert isinstance(owner, PrefixMatch)
        return owner is not self and owner.rank <= self.rank

    def _drop_reservation(self, key: BlockKey) -> None:
        if self._cache.reservations.get(key) is self:
            del self._cache.reservations[key]
