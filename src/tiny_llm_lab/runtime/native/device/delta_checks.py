"""Checks the Metal kernel for a gated delta net's decodes, and compares its time with that of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.runtime.native.device.fused_checks import draw, in_one_line, is_close
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.types import Clock, DeltaKernel, DeltaState, DeltaWeights

_DTYPES: Final = (mx.float32, mx.float16, mx.bfloat16)
# Requests; Hk, Hv, Dk, Dv and K.
_SHAPES: Final = ((1, (4, 8, 128, 128, 4)), (3, (2, 6, 64, 96, 4)), (2, (1, 1, 33, 7, 2)))
# Timed with the heads of a Qwen3.5 of 9B.
_TIMED: Final = (16, 32, 128, 128, 4)
ROWS: Final = (1, 8)
_ROUNDS, _WARM_UPS, _LAYERS = 7, 2, 4


@dataclass
class DrawnNet:
    """Drawn weights: `DeltaWeights`."""

    conv: mx.array
    a_log: mx.array
    dt_bias: mx.array
    norm: mx.array
    eps: float = 1e-6


class _Step:
    """Drawn inputs of `count` requests of one row each, and their states."""

    def __init__(self, count: int, sizes: tuple[int, int, int, int, int], dtype: mx.Dtype) -> None:
        key_heads, heads, dk, dv, taps = sizes
        channels = 2 * key_heads * dk + heads * dv
        widths = (channels, heads * dv, heads, heads)
        self.rows = [draw(i, (count, width), dtype) for i, width in enumerate(widths)]
        shapes = ((taps, channels), (heads,), (heads,), (dv,))
        conv, a_log, dt_bias, norm = (draw(i, shape, dtype) for i, shape in enumerate(shapes))
        self.weights: DeltaWeights = DrawnNet(conv, a_log, dt_bias, norm)
        self.states: list[DeltaState] = [
            (draw(i, (taps - 1, channels), mx.float32), draw(i, (heads, dk, dv), mx.float32))
            for i in range(count)
        ]
        mx.eval(self.rows, conv, a_log, dt_bias, norm, self.states)

    def by(self, kernel: DeltaKernel, states: Sequence[DeltaState]) -> tuple[mx.array, list[DeltaState]]:
        return kernel(self.rows, self.weights, states, range(len(states) + 1))


def judge_delta(subject: str, kernel: DeltaKernel, clock: Clock) -> Verdict:
    """The verdict on a kernel for requests of one row; its ratios are those of ROWS."""
    try:
        for dtype, (count, sizes) in product(_DTYPES, _SHAPES):
            step = _Step(count, sizes, dtype)
            got, want = step.by(kernel, step.states), step.by(in_arrays, step.states)
            if not all(is_close(a, b) for a, b in zip(_flat(*got), _flat(*want), strict=True)):
                wrong = f"{count} rows with Hk, Hv, Dk, Dv, K = {sizes}, {dtype}"
                return Verdict(subject, False, f"wrong for {wrong}: not used")
        ratios = tuple(_ratio(kernel, rows, clock) for rows in ROWS)
    except Exception as error:
        return Verdict(subject, False, f"fails ({in_one_line(error)}): not used")
    times = ", ".join(f"{ratio:.2f} with {rows}" for rows, ratio in zip(ROWS, ratios, strict=True))
    says = f"right; its time relative to arrays: {times} rows; {'' if is_faster(ratios) else 'not '}used"
    return Verdict(subject, True, says, ratios)


def is_faster(ratios: Sequence[float]) -> bool:
    """Whether a kernel with these ratios is used."""
    return bool(ratios) and max(ratios) < 1


def in_arrays(
    rows: Sequence[mx.array], weights: DeltaWeights, states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """What a `DeltaKernel` returns for requests of one row, written out in float32; out is float32."""
    qkv, z, a, b = (row.astype(mx.float32) for row in rows)
    tails, matrices = (mx.stack(list(part)) for part in zip(*states, strict=True))
    count, heads, dk, dv = matrices.shape
    tails = mx.concatenate([tails, qkv[:, None]], axis=1)
    mixed = mx.sum(tails * weights.conv.astype(mx.float32), axis=1)
    mixed = mixed * mx.sigmoid(mixed)
    keys = (mixed.shape[1] - heads * dv) // 2
    q, k = (part.reshape(count, -1, dk) for part in mx.split(mixed[:, : 2 * keys], 2, axis=1))
    q, k = (part * mx.rsqrt(mx.sum(part * part, axis=-1, keepdims=True) + 1e-6) for part in (q, k))
    q, k = (mx.repeat(part, heads * dk // keys, axis=1)[..., None] for part in (q * dk**-0.5, k))
    step = mx.logaddexp(a + weights.dt_bias.astype(mx.float32), mx.array(0.0))
    decay = mx.exp(-mx.exp(weights.a_log.astype(mx.float32)) * step)
    matrices = matrices * decay[..., None, None]
    missing = mixed[:, 2 * keys :].reshape(count, heads, dv) - mx.sum(matrices * k, axis=2)
    matrices = matrices + k * (mx.sigmoid(b)[..., None] * missing)[:, :, None]
    out = mx.sum(matrices * q, axis=2)
    out = out * mx.rsqrt(mx.mean(out * out, axis=-1, keepdims=True) + weights.eps)
    out = (out * weights.norm.astype(mx.float32)).reshape(count, -1) * z * mx.sigmoid(z)
    return out, [(tails[i, 1:], matrices[i : i + 1].squeeze(0)) for i in range(count)]


def _flat(out: mx.array, states: Sequence[DeltaState]) -> list[mx.array]:
    return [out, *(part for state in states for part in state)]


def _ratio(kernel: DeltaKernel, rows: int, clock: Clock) -> float:
    """The kernel's time divided by that of arrays; medians of alternating runs of some layers."""
    step, variants, times = (
        _Step(rows, _TIMED, mx.bfloat16),
        (in_arrays, kernel),
        (list[float](), list[float]()),
    )
    for number, which in interleave((0, 1), _ROUNDS, warm_ups=_WARM_UPS):
        start_s, states, outs = clock(), step.states, list[mx.array]()
        for _ in range(_LAYERS):
            out, states = step.by(variants[which], states)
            outs.append(out)
        mx.eval(outs, states)
        if number >= 0:
            times[which].append(clock() - start_s)
    return median(times[1]) / median(times[0])
