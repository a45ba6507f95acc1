"""Random values of JSON."""

import random
from typing import Any


def made(rng: random.Random, depth: int = 0) -> Any:
    """Some value of JSON."""
    kind = rng.randrange(5 if depth > 2 else 7)
    if kind == 5:
        return [made(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {rng.choice("abc'\""): made(rng, depth + 1) for _ in range(rng.randrange(3))}
    texts = ("7", "True", "null x", "['a']", "a\n\nb\n", "<b>", "", " x ", "é", "{}")
    number = rng.random() * 10.0 ** rng.randrange(-9, 20)
    return (rng.choice(texts), rng.randrange(-999, 999), number, True, None)[kind]
