"""Which block already stores the keys and values of a prefix: full blocks, found by a chained hash."""

import hashlib
from array import array
from collections.abc import Callable, Sequence

from tiny_llm_lab.types.scheduling.no_states import NO_SNAPSHOTS, NoSnapshots

from .block_pool import BlockPool


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns a block's SHA-256 digest (32 bytes), over its parent's digest and then its tokens.

    Tokens are 64-bit integers in the machine's byte order. The digest depends on every token from the first
    of the prompt to the last of the block. A first block's parent is the digest of the model's name and
    settings.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class BlockKey:
    """The tokens of a full block and, through `parent`, all tokens before it: equal keys are equal prefixes.

    Equality compares the tokens themselves, back to the first block. Comparing two keys with the same parent
    object takes O(block_size); the digest only makes different keys compare quickly.
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

    Counts what admitted requests asked for (num_query_blocks, num_query_tokens) and found (num_hit_blocks,
    num_hit_tokens), each request once.
    """

    def __init__(self, pool: BlockPool, root: str = "", snapshots: NoSnapshots = NO_SNAPSHOTS) -> None:
        """An empty cache on top of `pool`. Replaces the pool's `on_evict` by its own; the counters are 0.

        `root` names everything that keys and values depend on besides the tokens: model, dtype, settings.
        Sets pool, and reservations = {}, in which `PrefixMatch` stores, by key, the match that reserved it.
        From task 4.4.3 on: sets snapshots, which say after which of its keys a request can go on, and
        which forget the keys of evicted blocks.
        """
        self.pool, self.snapshots = pool, snapshots
        self.reservations: dict[BlockKey, object] = {}
        pool.on_evict = self._evict
        # For a disk, which outlives this cache: called with each key that can be found from now on.
        self.on_insert: Callable[[BlockKey], None] | None = None
        self.num_query_blocks = self.num_query_tokens = 0
        self.num_hit_blocks = self.num_hit_tokens = 0
        self._root = hashlib.sha256(root.encode()).digest()
        # Store the key with its block, so that look-ups can continue from that same object.
        self._stored: dict[BlockKey, tuple[BlockKey, int]] = {}
        self._key_of: dict[int, BlockKey] = {}

    def key(self, parent: BlockKey | None, token_ids: Sequence[int]) -> BlockKey:
        """Returns the key of a full block of `token_ids` after the block of `parent` (None = first block).

        Raises ValueError unless there are block_size tokens, because only full blocks are cached.
        """
        if len(token_ids) != self.pool.block_size:
            raise ValueError(f"a full block has {self.pool.block_size} tokens, not {len(token_ids)}")
        digest = hash_block(self._root if parent is None else parent.digest, token_ids)
        return BlockKey(digest, tuple(token_ids), parent)

    def before(self, salt: str) -> BlockKey | None:
        """Returns what is before the first block of prompts with this salt: None if the salt is empty.

        Otherwise a key without tokens, whose digest is SHA-256 of the root's digest and then the salt in
        UTF-8. Prompts of different salts share no block.
        """
        return BlockKey(hashlib.sha256(self._root + salt.encode()).digest(), (), None) if salt else None

    def keys(self, token_ids: Sequence[int], salt: str = "") -> list[BlockKey]:
        """Returns the keys of the blocks of a prompt that may be found, in order, the first after `before`.

        Only full blocks, and never the whole prompt, because its last token must be computed to sample after
        it. A prompt of P tokens has floor((P - 1) / block_size) such blocks.
        """
        size, parent = self.pool.block_size, self.before(salt)
        found: list[BlockKey] = []
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            found.append(self.key(found[-1] if found else parent, token_ids[start : start + size]))
        return found

    def find(self, key: BlockKey) -> tuple[BlockKey, int] | None:
        """Returns the stored key that equals `key`, and its block; None if no block has these tokens."""
        return self._stored.get(key)

    def insert(self, key: BlockKey, block: int) -> None:
        """Remember that `block`, which has a holder, stores the keys and values of `key`.

        Does nothing if another block already has them; requests keep sharing that block.
        """
        if key not in self._stored:
            # In this order an interrupt leaves at worst a block that is never found. A block that can be
            # found before it is marked would be allocated to another request and still be found.
            self.pool.mark_cached(block)
            self._key_of[block] = key
            self._stored[key] = (key, block)
            if self.on_insert is not None:
                self.on_insert(key)

    def clear(self) -> None:
        """Forget every block and every reservation, and keep the counters."""
        self._stored.clear()
        self._key_of.clear()
        self.reservations.clear()

    def _evict(self, block: int) -> None:
        # A marked block without a key was cleared, or its insert was interrupted.
        if (key := self._key_of.get(block)) is None:
            return
        found = self._stored.get(key)
        if found is not None and found[1] == block:
            del self._stored[key]
            self.snapshots.forget(key)
        del self._key_of[block]
