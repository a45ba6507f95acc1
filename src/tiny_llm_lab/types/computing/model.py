"""Checkpoints, tokenizers, models with their layers' mixers, and their caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.kernel_ops import KernelOps, LayerWeights
from tiny_llm_lab.types.computing.memory import Memory, RequestKvCache
from tiny_llm_lab.types.computing.paged import PagedCache
from tiny_llm_lab.types.computing.pictures import PictureConfig
from tiny_llm_lab.types.computing.rope_scaling import RopeScaling
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


Task = Literal["generate", "embed", "score"]


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of one Qwen checkpoint, with the names of its `config.json`."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int  # the longest text the model can serve, rope_scaling included
    tie_word_embeddings: bool
    qkv_bias: bool  # Qwen2: q, k and v projections have a bias
    qk_norm: bool  # Qwen3: queries and keys are RMS-normalised per head
    num_experts: int = 0  # of a mixture of experts; 0 = every layer's feed-forward is dense
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0  # of one expert; dense layers have intermediate_size
    shared_expert_intermediate_size: int = 0  # of the expert that every token uses; 0: there is none
    norm_topk_prob: bool = False  # whether the weights of a token's experts sum to one
    decoder_sparse_step: int = 1  # every so many layers have experts
    mlp_only_layers: tuple[int, ...] = ()  # these have no experts
    rope_scaling: RopeScaling | None = None  # None = no scaling
    hybrid: HybridConfig | None = None  # None: every layer has attention
    pictures: PictureConfig | None = None  # None: it reads text only
    # What the output head gives for a token: logits [V] of the next one, the hidden state [E] after the last
    # norm, or the logits of "no" and "yes".
    task: Task = "generate"

    @property
    def num_kv_layers(self) -> int:
        """Layers whose memory grows with every token: those with attention."""
        return self.num_hidden_layers - (self.hybrid.num_states if self.hybrid else 0)

    @property
    def state_bytes(self) -> int:
        """What one sequence's states take, whatever its length: 0 without a hybrid's layers."""
        return self.hybrid.state_bytes if self.hybrid else 0

    @property
    def rotary_dims(self) -> int:
        """The first so many dimensions of a head are rotated: all, but for hybrids."""
        return self.hybrid.rotary_dims if self.hybrid else self.head_dim

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward of `layer`, counted from 0, is a mixture of experts."""
        is_step = (layer + 1) % self.decoder_sparse_step == 0
        return self.num_experts > 0 and is_step and layer not in self.mlp_only_layers


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

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int, kv_bits: int | None = None
    ) -> PagedCache:
        """Returns storage for the keys and values of all layers in blocks of `block_size` tokens.

        `kv_bits` 8 stores them in 8 bits, None in the model's dtype.
        """
