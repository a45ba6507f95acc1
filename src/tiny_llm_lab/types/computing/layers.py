"""The mixer of a layer, the part that exchanges information between tokens."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.kernel_ops import LayerWeights
from tiny_llm_lab.types.computing.memory import Memory, RequestKvCache
from tiny_llm_lab.types.computing.wanted import Wanted


class Mixer(Protocol):
    """How tokens exchange information in a layer: attention, or anything else with its own memory."""

    weights: LayerWeights  # of the layer, as `LayerStack` takes them

    def __call__(
        self, x: mx.array, offsets: Sequence[int], memory: Memory, wanted: Wanted = Wanted()
    ) -> mx.array:
        """x [B, L, E], row b at positions offsets[b], ... -> [B, n, ...], of n = `wanted.last` tokens.

        It begins with the layer's first norm, and ends before the output projection.
        """

    def create_cache(self) -> RequestKvCache:
        """Returns an empty memory for one request."""
