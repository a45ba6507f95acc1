"""Gated delta nets between their projections: drawn weights and inputs, and the equations in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array

from tiny_llm_lab.types import DeltaState

EPS = 1e-6
Shape = tuple[int, int, int, int, int]  # Hk, Dk, Hv, Dv, K


@dataclass
class Net:
    conv: mx.array
    a_log: mx.array
    dt_bias: mx.array
    norm: mx.array
    eps: float


def a_net(shape: Shape) -> Net:
    hk, dk, hv, dv, taps = shape
    channels = 2 * hk * dk + hv * dv
    return Net(
        random_array(1, taps, channels),
        mx.log(mx.abs(random_array(2, hv)) * 4 + 0.1),
        random_array(3, hv),
        random_array(4, dv),
        EPS,
    )


def some_rows(shape: Shape, count: int, dtype: mx.Dtype = mx.float32, seed: int = 10) -> list[mx.array]:
    hk, dk, hv, dv, _ = shape
    widths = (2 * hk * dk + hv * dv, hv * dv, hv, hv)
    rows = [random_array(seed + i, count, width, dtype=dtype) * 2 for i, width in enumerate(widths)]
    mx.eval(rows)
    return rows


def nothing(shape: Shape, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    """The state before the first token."""
    hk, dk, hv, dv, taps = shape
    return mx.zeros((taps - 1, 2 * hk * dk + hv * dv), dtype), mx.zeros((hv, dk, dv))


def cut(rows: Sequence[mx.array], first: int, last: int | None) -> list[mx.array]:
    return [row[first:last] for row in rows]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def oracle(net: Net, shape: Shape, rows: Sequence[mx.array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, conv inputs and state: token by token in float64, in the words of the equations."""
    hk, dk, hv, dv, taps = shape
    qkv, z, a, b = (as_float64(row) for row in rows)
    conv, norm = as_float64(net.conv), as_float64(net.norm)
    padded = np.concatenate([np.zeros((taps - 1, qkv.shape[1])), qkv])
    mixed = silu(sum(conv[j] * padded[j : j + len(qkv)] for j in range(taps)))
    q, key, v = np.split(mixed, [hk * dk, 2 * hk * dk], axis=1)
    q, key = (np.repeat(part.reshape(-1, hk, dk), hv // hk, axis=1) for part in (q, key))
    q, key = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, key))
    v, z = v.reshape(-1, hv, dv), z.reshape(-1, hv, dv)
    decay = np.exp(-np.exp(as_float64(net.a_log)) * np.log1p(np.exp(a + as_float64(net.dt_bias))))
    beta = 1 / (1 + np.exp(-b))
    state, outs = np.zeros((hv, dk, dv)), []
    for t in range(len(qkv)):
        state = state * decay[t][:, None, None]
        error = v[t] - np.einsum("hkv,hk->hv", state, key[t])
        state = state + np.einsum("hk,hv->hkv", key[t], beta[t][:, None] * error)
        outs.append(np.einsum("hkv,hk->hv", state, q[t] / np.sqrt(dk)))
    o = np.array(outs)
    o = o / np.sqrt((o**2).mean(-1, keepdims=True) + net.eps) * norm * silu(z)
    return o.reshape(len(qkv), -1), padded[len(qkv) :], state


def before_last(net: Net, shape: Shape, rows: Sequence[mx.array], count: int = 1) -> DeltaState:
    """The state before the last `count` of `rows`."""
    if len(rows[0]) == count:
        return nothing(shape)
    _, tail, state = oracle(net, shape, cut(rows, 0, -count))
    return mx.array(tail.astype(np.float32)), mx.array(state.astype(np.float32))
