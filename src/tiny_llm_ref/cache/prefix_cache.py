"""Which block already holds the keys and values of a prefix: full blocks, found by a chained hash."""

import hashlib
from array import array
from collections.abc import Sequence

from .block_pool import BlockPool


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The SHA-256 digest (32 bytes) of a block: of its parent's digest, then its tokens as 64-bit integers.

    The integers have the byte order of the machine. The digest depends on every token from the first of the
    prompt to the block's last. The parent of a first block is the digest of the model's name and settings.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class BlockKey:
    """The tokens of a full block after those of its `parent`: equal keys mean equal prefixes.

    Equality compares the tokens themselves, back to the first block. Two keys with one parent object
    compare in O(block_size); the digest only makes different keys differ quickly.
    """

    __slots__ = ("digest", "parent", "token_ids")

    def __init__(self, digest: bytes, token_ids: tuple[int, ...], parent: "BlockKey | None") -> None:
        """Sets digest, token_ids and parent, which is None for the first block of a prompt."""
        self.digest = digest
        self.token_ids = token_ids
        self.parent = parent

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        mine: BlockKey | None = self
        theirs = other if isinstance(other, BlockKey) else None
        while mine is not theirs:
            if mine is None or theirs is None:
                return False
            if mine.digest != theirs.digest or mine.token_ids != theirs.token_ids:
                return False
            mine, theirs = mine.parent, theirs.parent
        return True


class PrefixCache:
    """Full blocks of computed tokens by their keys, until the pool evicts them.

    Counts what admitted requests asked for and found, each request once: num_query_blocks and
    num_query_tokens, num_hit_blocks and num_hit_tokens.
    """

    def __init__(self, pool: BlockPool, root: str = "") -> None:
        """An empty cache on top of `pool`, whose `on_evict` becomes this cache's; the counters are 0.

        `root` names everything but the tokens that keys and values depend on: model, dtype, settings.
        Sets pool, and reservations = {}, which `PrefixMatch` fills: by key, the match that has reserved it.
        """
        self.pool = pool
        self.reservations: dict[BlockKey, object] = {}
        pool.on_evict = self._evict
        self.num_query_blocks = self.num_query_tokens = 0
        self.num_hit_blocks = self.num_hit_tokens = 0
        self._root = hashlib.sha256(root.encode()).digest()
        # The stored key comes with its block, so that look-ups can go on from the very same object.
        self._stored: dict[BlockKey, tuple[BlockKey, int]] = {}
        self._key_of: dict[int, BlockKey] = {}

    def key(self, parent: BlockKey | None, token_ids: Sequence[int]) -> BlockKey:
        """The key of a full block of `token_ids` that follows the block of `parent` (None = the first one).

        Raises ValueError unless there are block_size tokens: only full blocks are cached.
        """
        if len(token_ids) != self.pool.block_size:
            raise ValueError(f"a full block has {self.pool.block_size} tokens, not {len(token_ids)}")
        digest = hash_block(self._root if parent is None else parent.digest, token_ids)
        return BlockKey(digest, tuple(token_ids), parent)

    def keys(self, token_ids: Sequence[int]) -> list[BlockKey]:
        """The keys of the blocks of a prompt that may be found, in order.

        Full blocks only, and never the whole prompt: its last token has to be computed to sample after it,
        so floor((P - 1) / block_size) blocks of P tokens.
        """
        size = self.pool.block_size
        found: list[BlockKey] = []
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            found.append(self.key(found[-1] if found else None, token_ids[start : start + size]))
        return found

    def find(self, key: BlockKey) -> tuple[BlockKey, int] | None:
        """The stored key that equals `key`, and its block; None when no block has these tokens."""
        return self._stored.get(key)

    def insert(self, key: BlockKey, block: int) -> None:
        """Remember that `block`, which has a holder, stores the keys and values of `key`.

        Does nothing when another block has them already: that one stays the one to share.
        """
        if key not in self._stored:
            # In this order an interrupt leaves at worst a block that is never found. One that could be found
            # before it is marked would be allocated to another request and found all the same.
            self.pool.mark_cached(block)
            self._key_of[block] = key
            self._stored[key] = (key, block)

    def clear(self) -> None:
        """Forget every block and every reservation; the counters stay."""
        self._stored.clear()
        self._key_of.clear()
        self.reservations.clear()

    def _evict(self, block: int) -> None:
        # A block that is marked and has no key was cleared, or its insert was interrupted.
        if (key := self._key_of.get(block)) is None:
            return
        found = self._stored.get(key)
        if found is not None and found[1] == block:
            del self._stored[key]
        del self._key_of[block]
