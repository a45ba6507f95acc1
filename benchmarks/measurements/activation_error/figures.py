"""How far logits are from the exact ones."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def log_softmax(logits: Array) -> Array:
    """Logarithms of the probabilities, in float64: [..., V] -> [..., V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def figures(exact: Array, logits: Array) -> dict[str, float]:
    """RMS of the difference over that of the exact logits, mean KL(exact || logits) in nats, equal argmax."""
    squares, kl = 0.0, 0.0
    for right, found in zip(
        exact, logits, strict=True
    ):  # a row at a time: all in float64 would be a gigabyte
        squares += float(np.mean((found.astype(np.float64) - right) ** 2))
        p, q = log_softmax(right), log_softmax(found)
        kl += float(np.sum(np.exp(p) * (p - q)))
    rms = float(np.sqrt(squares / len(exact) / np.mean(exact.astype(np.float64) ** 2)))
    return {"rms": rms, "kl": kl / len(exact), "equal": float(np.mean(exact.argmax(-1) == logits.argmax(-1)))}


def entropy(logits: Array) -> float:
    """Mean over the rows of logits [T, V], in nats."""
    return -float(np.mean([np.sum(np.exp(p) * p) for p in map(log_softmax, logits)]))
