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


class Stacked(list[DeltaState]):
    """The states of some requests as rows of two arrays; a reference to one keeps the memory of all."""

    def __init__(self, tails: mx.array, matrices: mx.array) -> None:
        """Take tails [B, K - 1, C] and matrices [B, Hv, Dk, Dv], which are kept as well."""
        self.tails, self.matrices = tails, matrices
        parts = (mx.split(part, len(tails)) if len(tails) > 1 else [part] for part in (tails, matrices))
        super().__init__((tail.squeeze(0), matrix.squeeze(0)) for tail, matrix in zip(*parts, strict=True))


def stacked(states: Sequence[DeltaState]) -> tuple[mx.array, mx.array]:
    """The arrays of `Stacked` states, or of any."""
    if isinstance(states, Stacked):
        return states.tails, states.matrices
    return mx.stack([tail for tail, _ in states]), mx.stack([matrix for _, matrix in states])


class Widened:
    """The weights of a net, `DeltaWeights`, and in float32, once, what `delta_operator` reads of them."""

    def __init__(self, weights: DeltaWeights, key_dim: int) -> None:
        """Compute taps, K of [C], wide_norm [Dv], and the factors of normalised queries and keys [Dk]."""
        self.conv, self.a_log, self.dt_bias = weights.conv, weights.a_log, weights.dt_bias
        self.norm, self.eps = weights.norm, weights.eps
        self.taps, self.wide_norm = list(weights.conv.astype(mx.float32)), weights.norm.astype(mx.float32)
        # The root of a mean in place of that of a sum.
        self.factors = mx.full((key_dim,), 1 / key_dim), mx.full((key_dim,), key_dim**-0.5)
        mx.eval(self.taps, self.wide_norm, self.factors)


def delta_operator(
    rows: Sequence[mx.array], weights: DeltaWeights, states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """See `DeltaKernel`; the requests have as many rows each.

    The states are `Stacked`, [Hv, Dv, Dk] in memory. Weights that are not `Widened` are widened in each call.
    """
    key_heads, _, dk, dv, _ = sizes_of(weights, states[0])
    wide = weights if isinstance(weights, Widened) else Widened(weights, dk)
    qkv, a, b = (rows[i].reshape(len(states), -1, rows[i].shape[-1]) for i in (0, 2, 3))
    tails, matrices = stacked(states)
    inputs, tails = _inputs(tails, qkv.astype(mx.float32), len(wide.taps))
    parts = mx.split(_mixed(inputs, wide.taps), [key_heads * dk, 2 * key_heads * dk], axis=-1)
    q, k, v = (mx.unflatten(part, 2, (-1, dim)) for part, dim in zip(parts, (dk, dk, dv), strict=True))
    q, k = (mx.fast.rms_norm(part, by, 1e-6 / dk) for part, by in zip((q, k), wide.factors, strict=True))
    decay, beta = _gates(a, b, weights.a_log, weights.dt_bias)
    # All in float32: MLX casts the decays to the queries' dtype. Masked, it has no kernel.
    out, after = mx.fast.gated_delta_update(q, k, v, decay, beta, initial_state=matrices.swapaxes(-1, -2))
    out = mx.fast.rms_norm(out, wide.wide_norm, weights.eps)
    return _gated(out.reshape(rows[1].shape), rows[1]), Stacked(tails, after.swapaxes(-1, -2))


def _inputs(tails: mx.array, new: mx.array, taps: int) -> tuple[list[mx.array], mx.array]:
    """What each tap reads of tails [B, K - 1, C] and new inputs [B, L, C], K of [B, L, C]; the next tails."""
    length = new.shape[1]
    if length == 1 < taps:  # one copy of what is kept, in place of two
        kept = mx.concatenate([tails[:, 1:], new], axis=1)
        return [tails[:, :1], *mx.split(kept, taps - 1, axis=1)], kept
    both = mx.concatenate([tails, new], axis=1)
    return [both[:, tap : tap + length] for tap in range(taps)], mx.contiguous(both[:, length:])


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
