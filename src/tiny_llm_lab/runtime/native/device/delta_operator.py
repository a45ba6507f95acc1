"""A gated delta net by MLX's operator for its recurrence: a Metal kernel for some numbers of heads."""

import io
from collections.abc import Sequence
from functools import partial

import mlx.core as mx

from tiny_llm_lab.types import DeltaState, DeltaWeights

Sizes = tuple[int, int, int, int, int]  # Hk, Hv, Dk, Dv and K


def sizes_of(weights: DeltaWeights, state: DeltaState) -> Sizes:
    """The sizes of the net that has these weights and this state."""
    (heads, dk, dv), (taps, channels) = state[1].shape, weights.conv.shape
    return (channels - heads * dv) // (2 * dk), heads, dk, dv, taps


def is_fused(sizes: Sizes) -> bool:
    """Whether MLX has a kernel for such heads on this device; without one, each token is some operators."""
    key_heads, heads, dk, dv, _ = sizes
    q, v, gate = (mx.zeros((1, 2, *shape)) for shape in ((key_heads, dk), (heads, dv), (heads,)))
    graph = io.StringIO()
    mx.export_to_dot(graph, *mx.fast.gated_delta_update(q, q, v, gate, gate))
    return "GatedDeltaUpdate" in graph.getvalue()


def delta_operator(
    rows: Sequence[mx.array], weights: DeltaWeights, states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """See `DeltaKernel`; the requests have as many rows each. A new state is [Hv, Dv, Dk] in memory."""
    key_heads, _, dk, dv, taps = sizes_of(weights, states[0])
    qkv, z, a, b = (row.reshape(len(states), -1, row.shape[-1]) for row in rows)
    length = qkv.shape[1]
    tails = mx.stack([tail for tail, _ in states])
    inputs = mx.concatenate([tails, qkv.astype(mx.float32)], axis=1)
    mixed = _mixed([inputs[:, tap : tap + length] for tap in range(taps)], list(weights.conv))
    parts = mx.split(mixed, [key_heads * dk, 2 * key_heads * dk], axis=-1)
    q, k, v = (part.reshape(*part.shape[:2], -1, dim) for part, dim in zip(parts, (dk, dk, dv), strict=True))
    # The root of a mean in place of that of a sum: one launch, and a factor.
    q, k = (mx.fast.rms_norm(part, None, 1e-6 / dk) * scale for part, scale in ((q, 1 / dk), (k, dk**-0.5)))
    decay, beta = _gates(a, b, weights.a_log, weights.dt_bias)
    # All in float32: MLX casts the decays to the queries' dtype. Masked, it has no kernel.
    before = mx.stack([state.swapaxes(-1, -2) for _, state in states])
    out, after = mx.fast.gated_delta_update(q, k, v, decay, beta, initial_state=before)
    out = mx.fast.rms_norm(out, weights.norm.astype(mx.float32), weights.eps)
    out = _gated(out.reshape(z.shape), z).reshape(rows[1].shape)
    return out, [(tail, state.swapaxes(-1, -2)) for tail, state in in_own_memory(inputs[:, length:], after)]


def in_own_memory(tails: mx.array, matrices: mx.array) -> list[DeltaState]:
    """The state of each request; a reference to one keeps no other's memory, one alone is not copied."""
    parts = (mx.split(part, len(tails)) for part in (tails, matrices))
    return [
        (mx.contiguous(tail.squeeze(0)), mx.contiguous(matrix.squeeze(0)))
        for tail, matrix in zip(*parts, strict=True)
    ]


@partial(mx.compile, shapeless=True)
def _mixed(inputs: list[mx.array], taps: list[mx.array]) -> mx.array:
    total = inputs[0] * taps[0].astype(mx.float32)
    for x, tap in zip(inputs[1:], taps[1:], strict=True):
        total = total + x * tap.astype(mx.float32)
    return total * mx.sigmoid(total)


@partial(mx.compile, shapeless=True)
def _gates(a: mx.array, b: mx.array, a_log: mx.array, dt_bias: mx.array) -> tuple[mx.array, mx.array]:
    step = mx.logaddexp(a.astype(mx.float32) + dt_bias.astype(mx.float32), mx.array(0.0))
    return mx.exp(-mx.exp(a_log.astype(mx.float32)) * step), mx.sigmoid(b.astype(mx.float32))


@partial(mx.compile, shapeless=True)
def _gated(out: mx.array, z: mx.array) -> mx.array:
    wide = z.astype(mx.float32)
    return (out * wide * mx.sigmoid(wide)).astype(z.dtype)
