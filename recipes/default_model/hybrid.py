"""The default model as a hybrid: two of its four layers become gated delta nets, and the rest is kept.

Recall by attention needs heads that tell each token what stood before it. In the default model these are
layer 0's; in a delta net the convolution looks back by itself, so its taps are set to do so before training.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from .delta_rule import chunkwise
from .model import Attention, Qwen3, Shape

SMALL: Final = 0.1
# How much each head of the default's layer 0 looks three, two and one tokens back, and at its own token.
LOOKS_BACK: Final = (
    (0.0, 0.15, 0.82, 0.01),
    (0.30, 0.65, 0.02, 0.0),
    (0.38, 0.05, 0.02, 0.02),
    (0.0, 0.01, 0.11, 0.86),
)


@dataclass(frozen=True)
class HybridShape(Shape):
    """The sizes of the hybrid; all that is not here is the default model's."""

    # Its first rotated pairs turn as fast as the default model's, whose theta is this one squared.
    rope_theta: float = math.sqrt(100_000.0)
    partial_rotary_factor: float = 0.5
    full_attention_interval: int = 2
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4

    @property
    def rotary_dims(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)


HYBRID_SHAPE: Final = HybridShape()


class GatedDeltaNet(nn.Module):
    """Convolution, gated delta rule and gated norm; takes angles like `Attention`, and does not use them."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads = shape.hidden_size, shape.linear_num_value_heads
        self.key_dim = shape.linear_num_key_heads * shape.linear_key_head_dim
        value_dim = heads * shape.linear_value_head_dim
        channels = 2 * self.key_dim + value_dim
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, value_dim, bias=False)
        self.in_proj_b, self.in_proj_a = (nn.Linear(hidden, heads, bias=False) for _ in range(2))
        taps = shape.linear_conv_kernel_dim
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1, bias=False)
        # Without training a state loses between a thousandth and a tenth of itself per token.
        steps = torch.logspace(-3, -1, heads)
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(steps)))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = nn.RMSNorm(shape.linear_value_head_dim, shape.rms_norm_eps)
        self.out_proj = nn.Linear(value_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape, (batch, length, _) = self.shape, x.shape
        heads = (batch, length, -1, shape.linear_value_head_dim)
        qkv, z, b, a = (
            each(x).float() for each in (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        )
        with torch.autocast("cpu", enabled=False):
            mixed = functional.silu(self.conv1d(qkv.transpose(1, 2))[..., :length]).transpose(1, 2)
            q, k, v = mixed.split((self.key_dim, self.key_dim, mixed.shape[-1] - 2 * self.key_dim), dim=-1)
            shared = shape.linear_num_value_heads // shape.linear_num_key_heads
            q, k = (
                _unit(each.unflatten(-1, (-1, shape.linear_key_head_dim))).repeat_interleave(shared, 2)
                for each in (q, k)
            )
            log_decay = -self.A_log.exp() * functional.softplus(a + self.dt_bias)
            parts = (q * shape.linear_key_head_dim**-0.5, k, v.view(heads))
            out = chunkwise(*(each.transpose(1, 2) for each in (*parts, log_decay, b.sigmoid()))).transpose(
                1, 2
            )
            out = self.norm(out) * functional.silu(z.view(heads))
        mixed_back: Tensor = self.out_proj(out.flatten(2))
        return mixed_back


class GatedAttention(Attention):
    """`Attention` whose output passes a gate; only the first dimensions of a head are rotated."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__(shape)
        # For each head its queries and then its gates.
        self.q_proj = nn.Linear(shape.hidden_size, 2 * shape.num_attention_heads * shape.head_dim, bias=False)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2, self.shape.head_dim)).unbind(-2)
        return q.flatten(2), gate.flatten(2).sigmoid()


class Hybrid(Qwen3):
    """The language model, with mixers as in Qwen3.5."""

    def __init__(self, shape: HybridShape) -> None:
        super().__init__(shape)
        for index, layer in enumerate(self.model.layers):
            is_full = (index + 1) % shape.full_attention_interval == 0
            layer.self_attn = GatedAttention(shape) if is_full else GatedDeltaNet(shape)
            for name, parameter in layer.self_attn.named_parameters():
                if name.endswith("proj.weight") or "in_proj" in name:
                    scale = 0.02 / math.sqrt(8) if name.startswith("o") else 0.02
                    nn.init.normal_(parameter, std=scale)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def start_from_default(model: Hybrid, default: Mapping[str, Tensor]) -> None:
    """Takes over the default model; delta nets are new, but those of layer 0 look back as its heads did."""
    shape = model.model.shape
    assert isinstance(shape, HybridShape)
    taken = {name: weight for name, weight in default.items() if "self_attn" not in name}
    model.load_state_dict(taken, strict=False)
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            if isinstance(layer.self_attn, GatedAttention):
                place = f"model.layers.{index}.self_attn."
                own = {name.removeprefix(place): w for name, w in default.items() if name.startswith(place)}
                _take_attention(layer.self_attn, own)
        embedded = (
            functional.rms_norm(default["model.embed_tokens.weight"], (shape.hidden_size,))
            * default["model.layers.0.input_layernorm.weight"]
        )
        _look_back(model.model.layers[0].self_attn, embedded, default)


def _take_attention(own: GatedAttention, weights: Mapping[str, Tensor]) -> None:
    """The same attention: zeros as gates halve it, so o_proj is doubled; rotated pairs come first."""
    shape = own.shape
    half, pairs = shape.head_dim // 2, shape.rotary_dims // 2
    first, second = torch.arange(half), torch.arange(half, 2 * half)
    order = torch.cat((first[:pairs], second[:pairs], first[pairs:], second[pairs:]))
    queries, keys = (
        weights[f"{each}_proj.weight"].unflatten(0, (-1, shape.head_dim))[:, order] for each in "qk"
    )
    own.q_proj.weight.copy_(torch.stack((queries, torch.zeros_like(queries)), dim=1).flatten(0, 2))
    own.k_proj.weight.copy_(keys.flatten(0, 1))
    own.v_proj.weight.copy_(weights["v_proj.weight"])
    own.o_proj.weight.copy_(2 * weights["o_proj.weight"])
    own.q_norm.weight.copy_(weights["q_norm.weight"][order])
    own.k_norm.weight.copy_(weights["k_norm.weight"][order])


def _look_back(own: GatedDeltaNet, embedded: Tensor, default: Mapping[str, Tensor]) -> None:
    """A value head gives what the default's head attends to, as far as it is among the last four tokens."""
    width, first = own.shape.linear_value_head_dim, 2 * own.key_dim
    shared = own.shape.num_attention_heads // own.shape.num_key_value_heads
    constant = torch.linalg.lstsq(embedded, torch.ones(len(embedded), 1)).solution[:, 0]
    values, back = (default[f"model.layers.0.self_attn.{each}_proj.weight"] for each in "vo")
    own.conv1d.weight[:first] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    # The same query and key, and a gate near one: a token reads what it has just written.
    own.in_proj_qkv.weight[own.key_dim : first].copy_(own.in_proj_qkv.weight[: own.key_dim])
    own.in_proj_b.weight.copy_(4.0 * constant.expand_as(own.in_proj_b.weight))
    own.in_proj_z.weight.copy_(2.0 * constant.expand_as(own.in_proj_z.weight))
    for head, taps in enumerate(LOOKS_BACK):
        rows = slice(head * width, (head + 1) * width)
        taken = values[head // shared * width :][:width]
        size = (embedded @ taken.T).square().mean().sqrt()
        # silu is straight only near zero, and the norm makes what is small as large as the rest.
        own.in_proj_qkv.weight[first + head * width :][:width].copy_(SMALL / size * taken)
        own.conv1d.weight[first + head * width :][:width] = torch.tensor(taps)
        own.out_proj.weight[:, rows].copy_(size / functional.silu(torch.tensor(2.0)) * back[:, rows])


def hybrid_config() -> dict[str, Any]:
    """What config.json says of it, as transformers writes a Qwen3.5 of text alone."""
    shape = asdict(HYBRID_SHAPE)
    rope = {name: shape.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        **shape,
        "rope_parameters": {"rope_type": "default", **rope},
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
    }


def stored_weights(model: Hybrid) -> dict[str, Tensor]:
    """The weights as such a checkpoint stores them: norms outside of delta nets multiply by 1 + weight."""
    stored = {}
    for name, weight in model.state_dict().items():
        layer = name.split(".self_attn.")[0]
        is_delta = f"{layer}.self_attn.A_log" in model.state_dict()
        adds_one = name.endswith("norm.weight") and not (is_delta and ".self_attn." in name)
        stored[name.replace("self_attn", "linear_attn") if is_delta else name] = (
            weight - 1 if adds_one else weight
        )
    return stored
