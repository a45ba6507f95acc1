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
    raise NotImplementedError("task 4.2.1")
