"""Random inputs of attention."""

import mlx.core as mx
from tests.helpers.toy import random_array


def qkv(seed, B, H, G, L, S, D, dtype=mx.float32):
    shapes = [(B, H, L, D), (B, G, S, D), (B, G, S, D)]
    return [random_array(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
