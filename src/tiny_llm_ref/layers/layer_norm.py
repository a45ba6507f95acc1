"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467)."""

import mlx.core as mx


class RMSNorm:
    """Scales vectors to a root mean square of 1, then by a learned weight."""

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5) -> None:
        """weight [dim]; `eps` is added to the mean square. Raises ValueError for another shape."""
        if weight.shape != (dim,):
            raise ValueError(f"RMSNorm weight has shape {weight.shape}, not ({dim},)")
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., dim] -> same shape and dtype (eq. 4). The mean is accumulated in float32."""
        wide = x.astype(mx.float32)
        mean_square = mx.mean(wide * wide, axis=-1, keepdims=True)
        normed = wide * mx.rsqrt(mean_square + self.eps)
        return (normed * self.weight.astype(mx.float32)).astype(x.dtype)
