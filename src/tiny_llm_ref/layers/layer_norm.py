"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467)."""

import mlx.core as mx


class RMSNorm:
    """Scales each vector to a root mean square of 1, then multiplies it by a learned weight."""

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        """weight is [dim]; `eps` is added to the mean square. Raises ValueError for any other shape."""
        if weight.shape != (dim,):
            raise ValueError(f"RMSNorm weight has shape {weight.shape}, not ({dim},)")
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Returns x [..., dim] normalised, in the same shape and dtype (eq. 4). Accumulates in float32."""
        wide = x.astype(mx.float32)
        mean_square = mx.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * mx.rsqrt(mean_square + self.eps)
        return (normed * self.weight.astype(mx.float32)).astype(x.dtype)
