"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464): a memory that is read, corrected and fades.

All is float32, token by token, in one order of operations: where a prompt was cut changes no bit.
"""

import mlx.core as mx

from .basics import silu

# Added to the sum of squares before its root.
_EPS = 1e-6


def causal_conv(inputs: mx.array, tail: mx.array, weight: mx.array) -> mx.array:
    """A convolution over time for each channel by itself, then silu: [B, L, C] -> [B, L, C] float32.

    weight [C, K]: tap K - 1 is the token's own, tap 0 that of the token K - 1 before it. tail [B, K - 1, C]
    are the inputs before these, zeros at the start. The taps are added from the oldest token on.
    """
    length, taps = inputs.shape[1], weight.shape[1]
    both = mx.concatenate([tail, inputs.astype(mx.float32)], axis=1)
    wide = weight.astype(mx.float32)
    # Not mx.conv1d: another number of tokens may take another kernel, with another order of additions.
    out = both[:, :length] * wide[:, 0]
    for tap in range(1, taps):
        out = out + both[:, tap : tap + length] * wide[:, tap]
    return silu(out)


def l2_normalised(x: mx.array) -> mx.array:
    """x [..., D] / sqrt(sum of squares + 1e-6), float32."""
    x = x.astype(mx.float32)
    return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + _EPS)


def decay_of(a: mx.array, a_log: mx.array, dt_bias: mx.array) -> mx.array:
    """What a step leaves of a state: exp(-exp(a_log) * softplus(a + dt_bias)), float32 in 0 to 1.

    a [..., Hv], a_log and dt_bias [Hv] -> [..., Hv]. (Mamba-2, arXiv 2405.21060, section 7.)
    """
    step = mx.logaddexp(a.astype(mx.float32) + dt_bias.astype(mx.float32), mx.array(0.0))
    return mx.exp(-mx.exp(a_log.astype(mx.float32)) * step)


def gated_delta_rule(
    qkv: tuple[mx.array, mx.array, mx.array],
    decay: mx.array,
    beta: mx.array,
    state: mx.array,
    num_outputs: int,
) -> tuple[mx.array, mx.array]:
    """The recurrence over L tokens (eq. 10): the last `num_outputs` outputs [B, n, Hv, Dv], and the state.

    `num_outputs` is 0 to L. qkv: queries and keys [B, L, Hv, Dk] (each value head has its key head's),
    values [B, L, Hv, Dv]; decay and beta [B, L, Hv]; state [B, Hv, Dk, Dv], all float32. For each token and
    head: the state S fades, S = decay * S; what it answers to the key is corrected towards the value,
    S = S + k (beta * (v - S^T k))^T; the output is S^T q.
    """
    queries, keys, values = qkv
    length = keys.shape[1]
    outputs = []
    for t in range(length):
        key = keys[:, t, :, :, None]
        state = state * decay[:, t, :, None, None]
        missing = values[:, t] - mx.sum(state * key, axis=-2)
        state = state + key * (beta[:, t, :, None] * missing)[:, :, None]
        if t >= length - num_outputs:
            outputs.append(mx.sum(state * queries[:, t, :, :, None], axis=-2))
    if not outputs:
        return mx.zeros((len(state), 0, *values.shape[2:])), state
    return mx.stack(outputs, axis=1), state
