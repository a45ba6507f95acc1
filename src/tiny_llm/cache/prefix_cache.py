"""Which block already stores the keys and values of a prefix: full blocks, found by a chained hash."""

from collections.abc import Sequence

from .block_pool import BlockPool


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns a block's SHA-256 digest (32 bytes), over its parent's digest and then its tokens.

    Tokens are 64-bit integers in the machine's byte order. The digest depends on every token from the first
    of the prompt to the last of the block. A first block's parent is the digest of the model's name and
    settings.
    """
    raise NotImplementedError("task 3.3.1")


class BlockKey:
    """The tokens of a full block and, through `parent`, all tokens before it: equal keys are equal prefixes.

    Equality compares the tokens themselves, back to the first block. Comparing two keys with the same parent
    object takes O(block_size); the digest only makes different keys compare quickly.
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

    Counts what admitted requests asked for (num_query_blocks, num_query_tokens) and found (num_hit_blocks,
    num_hit_tokens), each request once.
    """

    def __init__(self, pool: BlockPool, root: str = "") -> None:
        """An empty cache on top of `pool`. Replaces the pool's `on_evict` by its own; the counters are 0.

        `root` names everything that keys and values depend on besides the tokens: model, dtype, settings.
        Sets pool, and reservations = {}, in which `PrefixMatch` stores, by key, the match that reserved it.
        """
        raise NotImplementedError("task 3.3.1")

    def key(self, parent: BlockKey | None, token_ids: Sequence[int]) -> BlockKey:
        """Returns the key of a full block of `token_ids` after the block of `parent` (None = first block).

        Raises ValueError unless there are block_size tokens, because only full blocks are cached.
        """
        raise NotImplementedError("task 3.3.1")

    def before(self, salt: str) -> BlockKey | None:
        """Returns what is before the first block of prompts with this salt: None if the salt is empty.

        Otherwise a key without tokens, whose digest is SHA-256 of the root's digest and then the salt in
        UTF-8. Prompts of different salts share no block.
        """
        raise NotImplementedError("task 3.3.1")

    def keys(self, token_ids: Sequence[int], salt: str = "") -> list[BlockKey]:
        """Returns the keys of the blocks of a prompt that may be found, in order, the first after `before`.

        Only full blocks, and never the whole prompt, because its last token must be computed to sample after
        it. A prompt of P tokens has floor((P - 1) / block_size) such blocks.
        """
        raise NotImplementedError("task 3.3.1")

    def find(self, key: BlockKey) -> tuple[BlockKey, int] | None:
        """Returns the stored key that equals `key`, and its block; None if no block has these tokens."""
        raise NotImplementedError("task 3.3.1")

    def insert(self, key: BlockKey, block: int) -> None:
        """Remember that `block`, which has a holder, stores the keys and values of `key`.

        Does nothing if another block already has them; requests keep sharing that block.
        """
        raise NotImplementedError("task 3.3.1")

    def clear(self) -> None:
        """Forget every block and every reservation, and keep the counters."""
        raise NotImplementedError("task 3.3.1")
