"""A layer, and the part of it in which tokens learn of each other."""

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import mlx.core as mx

from tiny_llm_lab.types.computing.model import RequestKvCache
from tiny_llm_lab.types.computing.wanted import Wanted

M = TypeVar("M", contravariant=True)  # what it may remember of the tokens before


class Mixer(Protocol[M]):
    """How the tokens of a layer learn of each other: attention, or anything else with a memory of its own."""

    def __call__(
        self,
        x: mx.array,
        offsets: Sequence[int],
        cache: M,
        *,
        mask: mx.array | Literal["causal"] | None,
        wanted: Wanted,
    ) -> mx.array:
        """x [B, L, E], row b at positions offsets[b], ... -> [B, n, ...], of n = `wanted.last` tokens."""
        ...

    def create_cache(self) -> RequestKvCache:
        """An empty memory for one request."""
        ...


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
        """x [B, L, E] -> [B, n, E], of the rows and tokens of `wanted`."""
        ...
