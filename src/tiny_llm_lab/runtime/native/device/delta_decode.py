"""A given Metal kernel for the decodes of a gated delta net: one launch in place of some thirty operators."""

import functools
from collections.abc import Callable, Sequence
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.device.delta_operator import Stacked, stacked
from tiny_llm_lab.runtime.native.device.metal_source import LANES, metal_kernel
from tiny_llm_lab.types import DeltaState, DeltaWeights, UserError

MOST: Final = 128  # of a head's dimensions: a state's rows stay in registers
_SIMDGROUPS: Final = 16
_INPUTS: Final = (*("qkv", "z", "a", "b", "conv", "a_log", "dt_bias", "norm", "eps"), *("tails", "states"))


def delta_decode(
    rows: Sequence[mx.array], weights: DeltaWeights, states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """See `DeltaKernel`; each request has one row, and the states are `Stacked`.

    Raises UserError for what the kernel cannot take:
    more than one row, K = 1, and Dk or Dv above MOST.
    """
    z, count, taps = rows[1], len(states), weights.conv.shape[0]
    if len(z) != count or taps == 1 or max(states[0][1].shape[1:]) > MOST:
        shape = states[0][1].shape
        raise UserError(f"this kernel cannot take {len(z)} rows of {count} states {shape} and {taps} taps")
    tails, matrices = stacked(states)
    out, tails, matrices = _kernel()(
        inputs=[
            *(*rows, weights.conv, weights.a_log, weights.dt_bias, weights.norm),
            *(mx.array(weights.eps, mx.float32), tails, matrices),
        ],
        template=[
            *(("O", z.dtype), ("DK", matrices.shape[2]), ("DV", matrices.shape[3]), ("K", taps)),
            ("SIMDGROUPS", _SIMDGROUPS),
        ],
        grid=(LANES, _SIMDGROUPS * matrices.shape[1], count),
        threadgroup=(LANES, _SIMDGROUPS, 1),
        output_shapes=[z.shape, tails.shape, matrices.shape],
        output_dtypes=[z.dtype, mx.float32, mx.float32],
    )
    return out, Stacked(tails, matrices)


@functools.cache
def _kernel() -> Callable[..., list[mx.array]]:
    return metal_kernel("delta_decode", _INPUTS, ["out", "new_tails", "new_states"])
