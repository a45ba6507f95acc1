"""Qwen3 in PyTorch, with the parameter names of Hugging Face so that export is a copy."""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of the model; the defaults are those of the model that ships."""

    vocab_size: int = 2048
    hidden_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 512
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100_000.0
    max_position_embeddings: int = 4096

    @property
    def rotary_dims(self) -> int:
        """How many dimensions of a head are rotated."""
        return self.head_dim


DEFAULT_SHAPE: Final = Shape()

# QK norm caps a score at sqrt(head_dim) * gain**2: from 1.0 the gains need a thousand steps to make attention
# sharp enough to look at one token, and nothing is recalled until then.
FIRST_QK_GAIN: Final = 1.5


class Attention(nn.Module):
    """Grouped-query attention with QK norm and split-half RoPE."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, head = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(hidden, shape.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(hidden, shape.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(hidden, shape.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * head, hidden, bias=False)
        self.q_norm = nn.RMSNorm(head, shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_dim)
        # The norms run in float32 also under autocast: they are cheap, and bfloat16 scores are coarse.
        q, gate = self.queries(x)
        q = self.q_norm(q.float().view(heads)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).float().view(heads)).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
        repeats = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1) * gate)
        return mixed

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        """The queries, and what the heads' output is multiplied by."""
        return self.q_proj(x), 1.0


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Everything below the head; a separate module because Hugging Face calls it `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        half = self.shape.rotary_dims // 2
        frequencies = self.shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = positions[:, None, :, None].float() * frequencies
        x = self.embed_tokens(tokens)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Qwen3(nn.Module):
    """The language model; the head is the embedding, transposed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Backbone(shape)
        for name, parameter in self.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                nn.init.constant_(parameter, FIRST_QK_GAIN)
            if parameter.ndim < 2:
                continue
            # The two matrices that write to the residual stream start smaller, so depth does not add up.
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            scale = 0.02 / math.sqrt(2 * shape.num_hidden_layers) if writes else 0.02
            nn.init.normal_(parameter, std=scale)

    def hidden(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The normalised last states, before the head."""
        out: Tensor = self.model(tokens, positions)
        return out

    def head(self, states: Tensor) -> Tensor:
        """Logits of the given states: of only those that count, for the head is a large share of the work."""
        return functional.linear(states, self.model.embed_tokens.weight)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.head(self.hidden(tokens, positions))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
