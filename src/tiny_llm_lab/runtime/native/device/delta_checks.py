"""Compares the ways to compute a gated delta net on this device: with float64, and their times."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.native.device.delta_operator import Sizes, is_fused
from tiny_llm_lab.runtime.native.device.fused_checks import draw, is_close
from tiny_llm_lab.runtime.native.device.ladder import LAYERS, Cell, compared, judged, timed_for
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.types import Clock, DeltaKernel, DeltaState, DeltaWeights

# Timed with so many requests of one token, and with so many tokens of one request; used from the numbers on.
REQUESTS: Final = {1: 1, 8: 8, 64: 64}
TOKENS: Final = {2: 4, 32: 128, 256: 512, 1_024: 2_048}
CELLS: Final[Sequence[Cell]] = (*((count, 1) for count in REQUESTS), *((1, each) for each in TOKENS.values()))
DECODES: Final = CELLS[: len(REQUESTS)]
OPERATOR, OWN = "mx.fast.gated_delta_update", "delta_decode.metal"
COMMON: Final[Sizes] = (16, 32, 128, 128, 4)  # of a Qwen3.5 of 9B
# A request is compared from its first token on and from its 38th, over so many tokens.
_PAST: Final = 37
_LENGTHS: Final = (1, 2, 63, 64, 65, 512)
_DTYPES: Final = (mx.float32, mx.float16, mx.bfloat16)
# Of the largest number: an M5's products of float32 make up to 1/600, decays rounded to bfloat16 1/40.
_ALLOWED: Final = 1 / 128
_MOST_BYTES: Final = 1 << 27  # of the states of a cell


@dataclass
class DrawnNet:
    """Drawn weights: `DeltaWeights`."""

    conv: mx.array
    a_log: mx.array
    dt_bias: mx.array
    norm: mx.array
    eps: float = 1e-6


class _Drawn:
    """A net, and the tokens of some requests."""

    def __init__(self, sizes: Sizes, count: int, dtype: mx.Dtype) -> None:
        key_heads, heads, dk, dv, taps = sizes
        channels = 2 * key_heads * dk + heads * dv
        rows = [draw(i, (count, n), dtype) for i, n in enumerate((channels, heads * dv, heads, heads))]
        # Where keys repeat and are written in full, the powers of an inverse grow; a rounded decay shows in a
        # head that forgets little.
        repeated = mx.where((mx.arange(count) % 64 < 40)[:, None], rows[0][:1], rows[0])
        self.rows = [repeated, *rows[1:3], rows[3] + 3]
        conv, dt_bias, norm = (
            draw(i, shape, dtype) for i, shape in enumerate([(taps, channels), (heads,), (dv,)])
        )
        self.weights: DeltaWeights = DrawnNet(conv, mx.linspace(-9, 2, heads), dt_bias, norm)
        self.nothing: DeltaState = mx.zeros((taps - 1, channels)), mx.zeros((heads, dk, dv))
        mx.eval(self.rows, conv, dt_bias, norm, self.weights.a_log, self.nothing)


def cell_of(requests: int, tokens: int) -> Cell:
    """The cell that was timed for so many requests of so many tokens each."""
    return (timed_for(REQUESTS, requests), 1) if tokens == 1 else (1, timed_for(TOKENS, tokens))


def judge_delta(
    subject: str, kernel: DeltaKernel, clock: Clock, arrays: DeltaKernel, sizes: Sizes
) -> Verdict:
    """The verdict on a kernel for nets of `sizes`; its ratios are those of CELLS, of OWN the first ones."""
    if subject.endswith(OPERATOR) and not is_fused(sizes):
        return Verdict(subject, True, "MLX has no kernel for such heads: not used")
    cells = DECODES if subject.endswith(OWN) else CELLS
    lengths = _LENGTHS if len(cells) > len(DECODES) else _LENGTHS[:1]
    # float64 takes seconds for the long ones
    cases = [(dtype, lengths if dtype == mx.bfloat16 else _LENGTHS[:1]) for dtype in _DTYPES]
    found = ((first_wrong(kernel, sizes, *case), case[0]) for case in cases)
    wrong = (f"{result}, {dtype}" for result, dtype in found if result)
    measure = partial(_measured, kernel, arrays, sizes, clock)
    return judged(subject, wrong, cells, measure, "" if kernel is arrays else "arrays, requests x tokens")


def first_wrong(kernel: DeltaKernel, sizes: Sizes, dtype: mx.Dtype, lengths: Sequence[int]) -> str:
    """The first case, in words, whose results are not float64's within rounding; empty if there is none."""
    drawn = _Drawn(sizes, _PAST + max(lengths), dtype)
    outs, ends = _by_float64(drawn, {past + length for past in (0, _PAST) for length in (0, *lengths)})
    for length in lengths:
        for pasts in ((0,), (_PAST,), (0, _PAST)):
            rows = [mx.concatenate([row[past : past + length] for past in pasts]) for row in drawn.rows]
            starts = range(0, (len(pasts) + 1) * length, length)
            out, after = kernel(rows, drawn.weights, [ends[past] for past in pasts], starts)
            got = [out, *(part for state in after for part in state)]
            want = [mx.concatenate([outs[past : past + length] for past in pasts])]
            want += [part for past in pasts for part in ends[past + length]]
            if not all(is_close(a, b, _ALLOWED) for a, b in zip(got, want, strict=True)):
                return f"{length} tokens after {' and '.join(map(str, pasts))} others"
    return ""


def _by_float64(drawn: _Drawn, marks: set[int]) -> tuple[mx.array, Mapping[int, DeltaState]]:
    """The outputs of a request, and its state after so many tokens."""
    ends, outs = {0: drawn.nothing}, list[np.ndarray]()
    for out, tail, matrix in in_float64(drawn.rows, drawn.weights, drawn.nothing):
        outs.append(out)
        if len(outs) in marks:
            ends[len(outs)] = mx.array(tail.astype(np.float32)), mx.array(matrix.astype(np.float32))
    return mx.array(np.stack(outs).astype(np.float32)), ends


def in_float64(
    rows: Sequence[mx.array], weights: DeltaWeights, state: DeltaState
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """After each token of one request its output [Hv Dv], and the state; the next token overwrites it."""
    qkv, z, a, b, conv, a_log, dt_bias, norm, tail, matrix = (
        np.array(part.astype(mx.float32)).astype(np.float64)
        for part in (*rows, weights.conv, weights.a_log, weights.dt_bias, weights.norm, *state)
    )
    (heads, dk, dv), taps, count = matrix.shape, len(conv), len(qkv)
    inputs = np.concatenate([tail, qkv])
    mixed = _silu(sum(conv[tap] * inputs[tap : tap + count] for tap in range(taps)))
    parts = np.split(mixed[:, : -heads * dv], 2, axis=1)
    q, k = (np.repeat(part.reshape(count, -1, dk), heads * dk // part.shape[1], axis=1) for part in parts)
    q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
    v = mixed[:, -heads * dv :].reshape(count, heads, dv)
    decay, beta = np.exp(-np.exp(a_log) * np.logaddexp(a + dt_bias, 0)), 1 / (1 + np.exp(-b))
    for t in range(count):
        matrix *= decay[t][:, None, None]
        missing = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", matrix, k[t]))
        matrix += k[t][:, :, None] * missing[:, None]
        out = np.einsum("hkv,hk->hv", matrix, q[t]) / np.sqrt(dk)
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + weights.eps) * norm
        yield out.reshape(-1) * _silu(z[t]), inputs[t + 1 : t + taps], matrix


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _measured(
    kernel: DeltaKernel, arrays: DeltaKernel, sizes: Sizes, clock: Clock, cell: Cell
) -> tuple[float, float]:
    """The kernel's time divided by that of arrays, of some layers each."""
    if kernel is arrays:
        return 1.0, 0.0
    count, tokens = cell
    count = min(count, max(1, _MOST_BYTES // (4 * sizes[1] * sizes[2] * sizes[3])))
    drawn = _Drawn(sizes, count * tokens, mx.bfloat16)
    starts = range(0, (count + 1) * tokens, tokens)

    def begin(by: DeltaKernel) -> Callable[[], None]:
        states: Sequence[DeltaState] = [(drawn.nothing[0] + 0, drawn.nothing[1] + 0) for _ in range(count)]
        mx.eval(states)

        def run() -> None:
            after, outs = states, list[mx.array]()
            for _ in range(LAYERS):
                out, after = by(drawn.rows, drawn.weights, after, starts)
                outs.append(out)
            mx.eval(outs, after)

        return run

    return compared([partial(begin, each) for each in (arrays, kernel)], clock), 0.0
