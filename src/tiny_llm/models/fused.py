"""One layer on the C++ kernels: the arithmetic of a transformer block in a few large operators.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of a dozen operators each loses more time that way than its attention takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.native import KernelOps
from tiny_llm_lab.types import ModelConfig, Weight

from ..cache.paged_attention import LayerCache
from ..layers.positional_encoding import RoPE


@dataclass(frozen=True)
class LayerParts:
    """What a transformer layer computes with."""

    config: ModelConfig
    weights: Mapping[str, Weight]  # named as in QwenTransformerBlock
    rope: RoPE
    mlp: Callable[[mx.array], mx.array]  # the feed-forward, without norm and residual
    all_sum: Callable[[mx.array], mx.array]  # adds up over all ranks (day 3.9)
    is_whole: bool  # there is one rank: a sum over all of them changes nothing


def can_fuse(weights: Mapping[str, Weight]) -> bool:
    """Whether the kernels can read a layer's `weights`, named as in QwenTransformerBlock.

    Dense matrices can be read, and packed ones of 4 or 8 bits in groups of 32, 64 or 128; those that share
    an input (q, k and v; gate and up) must be packed alike. MoE weights (day 3.9) are not fused: of
    such a layer only the attention's matrices are checked.
    """
    raise NotImplementedError("task 2.5.6")


def fused_layer(
    native: KernelOps,
    layer: LayerParts,
    x: mx.array,
    offset: int | list[int] = 0,
    cache: LayerCache | None = None,
    keep: int | None = None,
    rows: mx.array | None = None,
) -> mx.array:
    """What `layer` makes of x [B, L, E] with a causal mask -> [B, keep, E], by the operators of `native`.

    Heads, attention and the rest of the layer: three operators besides those of the cache. A row of a batch
    sees its own cache's offset tokens, so no mask is needed. With `rows` (int32, from day 3.2 on) only these
    rows of the batch go on, [len(rows), keep, E].
    """
    raise NotImplementedError("task 2.5.6")
