"""The architecture of a checkpoint."""

from dataclasses import dataclass
from typing import Literal

from tiny_llm_lab.types.computing.hybrid import HybridConfig
from tiny_llm_lab.types.computing.pictures import PictureConfig
from tiny_llm_lab.types.computing.rope_scaling import RopeScaling

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
