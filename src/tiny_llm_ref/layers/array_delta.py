"""A gated delta net in arrays for a GPU: in blocks of tokens, or one token of several requests."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import DeltaNetSizes, DeltaState, DeltaWeights

from .chunkwise_delta import chunkwise_delta_rule
from .delta_rule import gated_delta_rule
from .gated_delta import GatedDeltaRule
from .layer_norm import RMSNorm


class ArrayDelta:
    """A `DeltaKernel` for requests that have as many rows each."""

    def __call__(
        self,
        rows: Sequence[mx.array],
        weights: DeltaWeights,
        states: Sequence[DeltaState],
        starts: Sequence[int],
    ) -> tuple[mx.array, list[DeltaState]]:
        """See `DeltaKernel`; within rounding of `GatedDeltaRule`. New states are parts of one array."""
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
