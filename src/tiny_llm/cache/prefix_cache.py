"""Which block already holds the keys and values of a prefix: full blocks, found by a chained hash."""

from collections.abc import Sequence

from .block_pool import BlockPool


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The SHA-256 digest (32 bytes) of a block: of its parent's digest, then its tokens as 64-bit integers.

    The integers have the byte order of the machine. The digest depends on every token from the first of the
    prompt to the block's last. The parent of a first block is the digest of the model's name and settings.
    """
    raise NotImplementedError("task 3.3.1")


class BlockKey:
    """The tokens of a full block after those of its `parent`: equal keys mean equal prefixes.

    Equality compares the tokens themselves, back to the first block. Two keys with one parent object
    compare in O(block_size); the digest only makes different keys differ quickly.
    """

    __slots__ = ("digest", "parent", "token_ids")

    def __init__(self, digest: bytes, token_ids: tuple[int, ...], parent: "BlockKey | None") -> None:
        """Sets digest, token_ids and parent, which is None for the first block of a prompt."""
        raise NotImplementedError("task 3.3.1")

    def __hash__(self) -> int:
        raise NotImplementedError("task 3.3.1")

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError("task 3.3.1")


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
        raise NotImplementedError("task 3.3.1")

    def key(self, parent: BlockKey | None, token_ids: Sequence[int]) -> BlockKey:
        """The key of a full block of `token_ids` that follows the block of `parent` (None = the first one).

        Raises ValueError unless there are block_size tokens: only full blocks are cached.
        """
        raise NotImplementedError("task 3.3.1")

    def keys(self, token_ids: Sequence[int]) -> list[BlockKey]:
        """The keys of the blocks of a prompt that may be found, in order.

        Full blocks only, and never the whole prompt: its last token has to be computed to sample after it,
        so floor((P - 1) / block_size) blocks of P tokens.
        """
        raise NotImplementedError("task 3.3.1")

    def find(self, key: BlockKey) -> tuple[BlockKey, int] | None:
        """The stored key that equals `key`, and its block; None when no block has these tokens."""
        raise NotImplementedError("task 3.3.1")

    def insert(self, key: BlockKey, block: int) -> None:
        """Remember that `block`, which has a holder, stores the keys and values of `key`.

        Does nothing when another block has them already: that one stays the one to share.
        """
        raise NotImplementedError("task 3.3.1")

    def clear(self) -> None:
        """Forget every block and every reservation; the counters stay."""
        raise NotImplementedError("task 3.3.1")
