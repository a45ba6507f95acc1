"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464): a memory that is read, corrected and fades.

All is float32, token by token, in one order of operations: where a prompt was cut changes no bit.
"""

import mlx.core as mx


def causal_conv(inputs: mx.array, tail: mx.array, weight: mx.array) -> mx.array:
    """A convolution over time for each channel by itself, then silu: [B, L, C] -> [B, L, C] float32.

    weight [C, K]: tap K - 1 is the token's own, tap 0 that of the token K - 1 before it. tail [B, K - 1, C]
    are the inputs before these, zeros at the start. The taps are added from the oldest token on.
    """
    raise NotImplementedError("task 4.1.1")


def l2_normalised(x: mx.array) -> mx.array:
    """x [..., D] / sqrt(sum of squares + 1e-6), float32."""
    raise NotImplementedError("task 4.1.2")


def decay_of(a: mx.array, a_log: mx.array, dt_bias: mx.array) -> mx.array:
    """What a step leaves of a state: exp(-exp(a_log) * softplus(a + dt_bias)), float32 in 0 to 1.

    a [..., Hv], a_log and dt_bias [Hv] -> [..., Hv]. (Mamba-2, arXiv 2405.21060, section 7.)
    """
    raise NotImplementedError("task 4.1.2")


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
    raise NotImplementedError("task 4.1.3")
