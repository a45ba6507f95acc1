"""A layer, and its mixer, the part that exchanges information between tokens."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import mlx.core as mx

from tiny_llm_lab.types.computing.model import RequestKvCache
from tiny_llm_lab.types.computing.wanted import Wanted

M = TypeVar("M", contravariant=True)  # what it may use to remember earlier tokens


class Mixer(Protocol[M]):
    """How tokens exchange information in a layer: attention, or anything else with its own memory."""

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: M,
        *,
        mask: mx.array | Literal["causal"] | None,
        wanted: Wanted,
    ) -> mx.array:
        """x [B, L, E], row b at positions offsets[b], ... -> [B, n, ...] for n = `wanted.last` tokens."""

    def create_cache(self) -> RequestKvCache:
        """Returns an empty memory for one request."""


class Layer(Protocol[M]):
    """A mixer and a feed-forward."""

    @property
    def mixer(self) -> Mixer[M]: ...

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: M,
        *,
        mask: mx.array | Literal["causal"] | None = "causal",
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """x [B, L, E] -> [B, n, E] for the rows and tokens of `wanted`."""
