"""The gated delta rule in blocks of tokens: products of matrices in place of one step a token.

Yang et al. 2024, arXiv 2406.06484, with the decay of arXiv 2412.06464.
"""

import mlx.core as mx


def chunkwise_delta_rule(
    qkv: tuple[mx.array, mx.array, mx.array],
    decay: mx.array,
    beta: mx.array,
    state: mx.array,
    num_outputs: int,
    block_size: int = 64,
) -> tuple[mx.array, mx.array]:
    """What `gated_delta_rule` returns, computed `block_size` tokens at a time; within rounding of it.

    The corrections u_t = beta_t (v_t - decay_t S_(t-1)^T k_t) of a block solve a unit lower triangular
    system. L is 1 or more, a multiple of `block_size` or not. Every decay in 0 to 1 is allowed, 0 included.
    All is float32, on the default device.
    """
    length = decay.shape[1]
    size = min(block_size, length)
    queries, keys, values, beta = (_in_blocks(part, size, 0.0) for part in (*qkv, beta[..., None]))
    decay = _in_blocks(decay, size, 1.0)
    fading, left = mx.cumprod(decay, axis=-1)[..., None], _left_between(decay)
    by_keys, written = keys.swapaxes(-1, -2), (keys * left[..., -1, :, None]).swapaxes(-1, -2)
    inverse = _unit_lower_inverse(beta * left * (keys @ by_keys))
    shares, outputs = left * (queries @ by_keys), []
    for n in range(len(keys)):
        corrections = inverse[n] @ (beta[n] * (values[n] - fading[n] * (keys[n] @ state)))
        if (n + 1) * size > length - num_outputs:
            outputs.append(fading[n] * (queries[n] @ state) + shares[n] @ corrections)
        state = fading[n, :, :, -1:] * state + written[n] @ corrections
    if not outputs:
        return mx.zeros((len(state), 0, *qkv[2].shape[2:])), state
    end = length - (len(keys) - len(outputs)) * size
    return mx.concatenate(outputs, axis=2).swapaxes(1, 2)[:, end - num_outputs : end], state


def _in_blocks(x: mx.array, size: int, fill: float) -> mx.array:
    """[B, L, H, ...] -> [N, B, H, size, ...]; tokens after the last write nothing and fade nothing."""
    batch, length, *rest = x.shape
    count = -(-length // size)
    padding = [(0, 0), (0, count * size - length), *[(0, 0) for _ in rest]]
    x = mx.pad(x, padding, constant_values=fill).reshape(batch, count, size, *rest)
    return mx.contiguous(x.swapaxes(0, 1).swapaxes(2, 3))


def _left_between(decay: mx.array) -> mx.array:
    """[..., C] -> [..., C, C]: what is left at token t of what token i wrote, 0 for i > t."""
    tokens = mx.arange(decay.shape[-1])
    # Products and no quotients: a decay may be 0.
    factors = mx.where(tokens[:, None] > tokens, decay[..., None], 1.0)
    return mx.tril(mx.cumprod(factors, axis=-2))


def _unit_lower_inverse(lower: mx.array) -> mx.array:
    """(I + A)^-1 [..., C, C], with A what `lower` has below its diagonal.

    From the inverses of blocks on the diagonal those of twice their size: T - T B T, with B what is below.
    """
    # Not (I - A)(I + A^2)(I + A^4)...: where keys repeat, the powers grow like binomials and cancel.
    tokens = mx.arange(lower.shape[-1])
    rows, columns = tokens[:, None], tokens
    inverse, size = mx.broadcast_to(mx.eye(len(tokens)), lower.shape), 1
    while size < len(tokens):
        below = (rows // size - 1 == columns // size) & (rows // size % 2 == 1)
        inverse = inverse - inverse @ mx.where(below, lower, 0.0) @ inverse
        size *= 2
    return inverse
