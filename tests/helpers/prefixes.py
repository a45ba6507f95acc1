"""Prompts of full blocks, and their blocks in a prefix cache."""

import itertools

SIZE = 4


def prompt(*blocks, rest=()):
    """A prompt of full blocks, each of four equal tokens, and what follows them."""
    return [token for token in blocks for _ in range(SIZE)] + list(rest)


def computed(cache, pool, token_ids):
    """The blocks of a request that computed a whole prompt by itself, all full ones stored."""
    blocks = pool.allocate(-(-len(token_ids) // SIZE))
    parent = None
    for i in range(len(token_ids) // SIZE):
        parent = cache.key(parent, token_ids[i * SIZE : (i + 1) * SIZE])
        cache.insert(parent, blocks[i])
    return blocks


def found(cache, token_ids):
    """The blocks of the longest cached prefix of a prompt."""
    blocks = [cache.find(key) for key in cache.keys(token_ids)]
    return [block[1] for block in itertools.takewhile(bool, blocks)]
