"""Checkpoints, tokenizers, models with their layers' mixers, and their caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.kernel_ops import KernelOps, LayerWeights
from tiny_llm_lab.types.computing.memory import Memory, RequestKvCache
from tiny_llm_lab.types.computing.model_config import ModelConfig
from tiny_llm_lab.types.computing.paged import PagedCache
from tiny_llm_lab.types.computing.wanted import Wanted
from tiny_llm_lab.types.computing.weight import Weight


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


class Detokenizer(Protocol):
    """Turns token ids into text one at a time, and holds back bytes that are not yet a character."""

    def add_token(self, token: int) -> None: ...
    def finalize(self) -> None: ...
    @property
    def last_segment(self) -> str:
        """The text that became final since this property was last read."""


class Tokenizer(Protocol):
    """What a solution may call on a tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...
    @property
    def detokenizer(self) -> Detokenizer:
        """A new detokenizer every time you read this property."""

    @property
    def eos_token_ids(self) -> set[int]:
        """All tokens that end a text (Qwen declares two)."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model folder; `weights` keeps the checkpoint's own parameter names."""

    name: str
    path: Path
    config: ModelConfig
    weights: Mapping[str, Weight]
    tokenizer: Tokenizer
    dtype: mx.Dtype


class Model(Protocol):
    """A language model, as the lab calls it."""

    config: ModelConfig

    @property
    def ops(self) -> KernelOps | None:
        """What it, its caches and its samplers compute with; None: its own arrays."""

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """tokens [B, L] int32 after `offset` earlier tokens -> logits [B, L, V], or only what is `wanted`."""

    def create_kv_cache(self) -> list[RequestKvCache]:
        """Returns one empty cache per layer, for one request."""


class PagedModel(Model, Protocol):
    """A model that takes packed rows of many requests, whose keys and values are in blocks (week 3).

    Tokens [T, 1] int32 at positions `offset` [T] have logits [rows, 1, V] of the wanted rows.
    """

    def hidden(
        self,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """Returns what the output head takes, [rows, n, E]."""

    def logits(self, hidden: mx.array) -> mx.array:
        """hidden [..., E] -> [..., V]."""

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int, kv_bits: int | None = None
    ) -> PagedCache:
        """Returns storage for the keys and values of all layers in blocks of `block_size` tokens.

        `kv_bits` 8 stores them in 8 bits, None in the model's dtype.
        """
