"""Gated delta nets between their projections: drawn weights and inputs, and what float64 makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime.native.device import delta_checks
from tiny_llm_lab.runtime.native.device.delta_operator import delta_operator
from tiny_llm_lab.runtime.native.device.device_tests import DeviceTests
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


def oracle(net: Net, shape: Shape, rows: Sequence[mx.array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, conv inputs and state of a request's first tokens, in float64."""
    outs, tails, states = zip(*delta_checks.in_float64(rows, net, nothing(shape)), strict=True)
    return np.array(outs), tails[-1], states[-1]


def before_last(net: Net, shape: Shape, rows: Sequence[mx.array], count: int = 1) -> DeltaState:
    """The state before the last `count` of `rows`."""
    if len(rows[0]) == count:
        return nothing(shape)
    _, tail, state = oracle(net, shape, cut(rows, 0, -count))
    return mx.array(tail.astype(np.float32)), mx.array(state.astype(np.float32))


def by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without C++ kernels all gated delta nets are computed by MLX's operator."""
    found = dict.fromkeys(delta_checks.CELLS, delta_operator)
    monkeypatch.setattr(DeviceTests, "delta_kernels", lambda *_: found)
