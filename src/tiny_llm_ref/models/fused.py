"""One layer on a model's operators: the arithmetic of a transformer block in a few large pieces.

An operator costs some microseconds to plan, to start and to end, whatever it computes. A step of one token
through 28 layers of dozens of operators each loses more time that way than its attention takes.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, KvCache, LayerWeights, ModelConfig, Weight

from ..cache.paged_attention import PagedLayer
from ..layers.attention import Mask
from ..layers.positional_encoding import RoPE

AllSum = Callable[[mx.array], mx.array]


class FusedLayer:
    """What a transformer block computes with a causal mask, by the operators `ops`."""

    def __init__(
        self,
        ops: KernelOps,
        config: ModelConfig,
        weights: Mapping[str, Weight],
        rope: RoPE,
        mlp: Callable[[mx.array], mx.array],
        all_sum: AllSum | None = None,
    ) -> None:
        """`weights` as for `QwenTransformerBlock`; `mlp` is its feed-forward.

        From task 3.9.2 on: where there are experts, `mlp` computes them.
        From task 3.9.4 on: `all_sum` as for `QwenTransformerBlock`.
        """
        self.ops, self.config, self.rope, self.mlp, self.all_sum = ops, config, rope, mlp, all_sum
        self.weights = LayerWeights.of(config.rms_norm_eps, weights)

    def __call__(
        self,
        x: mx.array,
        offset: int | list[int] = 0,
        cache: KvCache | PagedLayer | None = None,
        keep: int | None = None,
        rows: mx.array | None = None,
    ) -> mx.array:
        """x [B, L, E] at positions `offset`, ... -> [B, keep, E], of the last `keep` tokens (None = all L).

        A row of a batch sees its own cache's offset tokens, so no mask is needed.
        From task 2.6.1 on: `offset` may be a list, one number per row.
        From task 3.2.2 on: the cache may be a `PagedLayer`; with `rows` only these rows of the batch go on,
        -> [len(rows), keep, E].
        """
        length = x.shape[1]
        kept = length if keep is None else min(keep, length)
        q, k, v = self.ops.qkv_rope(x, self.weights, self.rope, offset, kept)
        scale = self.config.head_dim**-0.5
        if isinstance(cache, PagedLayer):
            out = cache.attend(q, k, v, scale)
        else:
            if cache is not None:
                k, v = cache.update_and_fetch(k, v)
            out = self.ops.attention(q, k, v, length if cache is None else cache.offset, scale)
        x = x if kept == length else x[:, length - kept :]
        if rows is not None:
            x, out = x[rows], out[rows]
        return self._after_attention(x, out)

    def takes(self, mask: Mask, num_new_tokens: int) -> bool:
        """Whether `mask` lets a token see exactly the tokens up to itself, as this layer does."""
        return num_new_tokens == 1 if mask is None else isinstance(mask, str) and mask == "causal"

    def _after_attention(self, x: mx.array, attended: mx.array) -> mx.array:
        ops, w = self.ops, self.weights
        if self.all_sum is None and w.router is None:
            return ops.attn_out_mlp(x, attended, w)
        all_sum = self.all_sum or (lambda part: part)
        out = all_sum(ops.linear(attended, [w.out])[0])
        x, normed = ops.rms_norm(x, w.mlp_norm, w.eps, out)
        if w.router is not None:
            return x + all_sum(self.mlp(normed))
        gated, raised = ops.linear(normed, [w.gate, w.up])
        return x + all_sum(ops.linear(ops.swiglu(gated, raised), [w.down])[0])
