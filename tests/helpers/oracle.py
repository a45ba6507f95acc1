"""What the operators mean, in float64 NumPy and nothing clever."""

import numpy as np
from tests.helpers.tolerance import as_float64


def softmax(x: object, axis: int = -1) -> np.ndarray:
    wide = as_float64(x)
    exps = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, keepdims=True)


def silu(x: object) -> np.ndarray:
    wide = as_float64(x)
    return wide * np.exp(-np.logaddexp(0.0, -wide))


def rms_norm(x: object, weight: object, eps: float) -> np.ndarray:
    wide = as_float64(x)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * as_float64(weight)


def visible_causal(L: int, S: int) -> np.ndarray:
    """[L, S] booleans: new token i is token S - L + i of all and sees itself and what came before."""
    return np.array([[column <= S - L + row for column in range(S)] for row in range(L)])


def attention(
    q: object, k: object, v: object, scale: float | None = None, mask: object = None, causal: bool = False
) -> np.ndarray:
    """q [B, H, L, D], k and v [B, G, S, D]; head by head, head h with kv head h // (H / G)."""
    q, k, v = as_float64(q), as_float64(k), as_float64(v)
    batch, heads, length, dim = q.shape
    groups, stored = k.shape[1], k.shape[2]
    factor = 1 / np.sqrt(dim) if scale is None else scale
    bias = np.zeros((batch, heads, length, stored))
    if mask is not None:
        m = np.asarray(mask)
        bias = bias + (np.where(m, 0.0, -np.inf) if m.dtype == bool else m.astype(np.float64))
    if causal:
        bias = bias + np.where(visible_causal(length, stored), 0.0, -np.inf)
    out = np.zeros(q.shape)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // groups)
            out[b, h] = softmax(q[b, h] @ k[b, g].T * factor + bias[b, h]) @ v[b, g]
    return out


def rope(x: object, offsets: list[int], base: float = 10000.0, traditional: bool = False) -> np.ndarray:
    """x [B, L, H, D], one offset a row: pairs as complex numbers, turned by position * base^(-2i / D)."""
    wide = as_float64(x)
    batch, length, _, dim = wide.shape
    half = dim // 2
    out = np.empty_like(wide)
    for b in range(batch):
        for t in range(length):
            for i in range(half):
                one, two = (2 * i, 2 * i + 1) if traditional else (i, i + half)
                turned = (wide[b, t, :, one] + 1j * wide[b, t, :, two]) * np.exp(
                    1j * (offsets[b] + t) * base ** (-2 * i / dim)
                )
                out[b, t, :, one], out[b, t, :, two] = turned.real, turned.imag
    return out


def unpack(packed: object, bits: int) -> np.ndarray:
    """uint32 [O, words] -> the integers [O, words * 32 / bits], read bit by bit from each row's stream."""
    words = np.asarray(packed).astype(np.uint64)
    stream = ((words[..., None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)).reshape(words.shape[0], -1)
    fields = stream.reshape(words.shape[0], -1, bits).astype(np.int64)
    return (fields << np.arange(bits)).sum(axis=-1)


def dequantized(packed: object, scales: object, biases: object, group_size: int, bits: int) -> np.ndarray:
    q = unpack(packed, bits).astype(np.float64)
    spread = (
        np.repeat(as_float64(scales), group_size, axis=-1),
        np.repeat(as_float64(biases), group_size, axis=-1),
    )
    return q * spread[0] + spread[1]
