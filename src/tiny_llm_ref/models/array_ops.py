"""The functions that you wrote as one set of operators, so that every model runs on operators."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.runtime.native import ComposedOps, changed_rows
from tiny_llm_lab.types import (
    DeltaNetSizes,
    DeltaState,
    DeltaWeights,
    DrawRow,
    Offsets,
    QuantizedWeights,
    Rotary,
    Weight,
)

from ..cache.paged_attention import paged_attention
from ..cache.storage import ArrayStorage
from ..generate.logprobs import score_tokens
from ..generate.sampler import Sampler, most_likely
from ..layers.attention import scaled_dot_product_attention_grouped
from ..layers.basics import linear, silu
from ..layers.chunkwise_delta import chunkwise_delta_rule
from ..layers.delta_rule import gated_delta_rule
from ..layers.embedding import Embedding
from ..layers.gated_delta import GatedDeltaRule
from ..layers.layer_norm import RMSNorm
from ..layers.moe import expert_mlp, route


class ArrayOps(ArrayStorage, ComposedOps):
    """`KernelOps` on plain arrays. See there for what each operator returns."""

    name = "off"  # as in TINY_LLM_KERNELS
    starts_early = False
    paged_attention = staticmethod(paged_attention)
    route = staticmethod(route)
    expert_mlp = staticmethod(expert_mlp)
    argmax = staticmethod(most_likely)
    score = staticmethod(score_tokens)

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """Rows of a table."""
        if isinstance(weight, QuantizedWeights):
            rows, columns = weight.weight.shape[0], weight.weight.shape[1] * 32 // weight.bits
        else:
            rows, columns = weight.shape
        return Embedding(rows, columns, weight)(tokens)

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """Products with several matrices."""
        return [linear(x, w, biases[i] if biases else None) for i, w in enumerate(weights)]

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """A sum and its norm."""
        x = x if delta is None else x + delta
        return x, RMSNorm(x.shape[-1], weight, eps)(x)

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], its first dimensions rotated from `offsets` on -> [B, H, L, D]."""
        dims = 2 * rope.periods.size
        turned = mx.concatenate([rope(x[..., :dims], offsets), x[..., dims:]], axis=-1)
        return turned.transpose(0, 2, 1, 3)

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """Attention of rows of different lengths."""
        new, columns = query.shape[2], mx.arange(key.shape[2])
        seen = mx.array(list(lengths))[:, None] - mx.arange(new, 0, -1)
        visible = (columns <= seen[..., None])[:, None]
        out = scaled_dot_product_attention_grouped(query, key, value, scale, visible)
        return out.transpose(0, 2, 1, 3).flatten(2)

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """The product of silu(gate) and up."""
        return silu(gate) * up

    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array:
        """x, as far as the gate is open."""
        return x * mx.sigmoid(gate)

    def draw(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """A token of each row."""
        if not rows:
            return mx.zeros((0,), mx.uint32)
        changed = changed_rows(logits, rows)
        parts = zip(mx.split(changed, len(rows)), rows, strict=True)
        return mx.concatenate([Sampler(row.sampling).drawn(part, [row.key]) for part, row in parts])


def array_delta(
    rows: Sequence[mx.array], weights: DeltaWeights, states: Sequence[DeltaState], starts: Sequence[int]
) -> tuple[mx.array, list[DeltaState]]:
    """A `DeltaKernel` for requests that have as many rows each, within rounding of `GatedDeltaRule`.

    It computes blocks of tokens, or one token of several requests. New states are parts of one array.
    """
    (heads, key_dim, value_dim), (taps, channels) = states[0][1].shape, weights.conv.shape
    key_heads = (channels - heads * value_dim) // (2 * key_dim)
    net = GatedDeltaRule(
        DeltaNetSizes(key_heads, heads, key_dim, value_dim, taps),
        weights.conv.T,
        weights.a_log,
        weights.dt_bias,
        RMSNorm(value_dim, weights.norm, weights.eps),
        gated_delta_rule if starts[1] == 1 else chunkwise_delta_rule,
    )
    many = [row.reshape(len(states), -1, row.shape[-1]) for row in rows]
    out, after = net.batch(many, states)
    return out.flatten(0, 1).astype(rows[0].dtype), after
