"""A hybrid's layers with seeded weights, small enough for a test: Hv = 2 Hk, and Dk is not Dv."""

from typing import Any

import mlx.core as mx
import numpy as np
from tests.helpers.experts import MOE
from tests.helpers.toy import random_array

from tiny_llm_lab.types import DeltaNetSizes, HybridConfig, LayerWeights, ModelConfig

SIZES = DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=24, conv_kernel=4)
E = 32
HYBRID = HybridConfig(("linear_attention", "full_attention"), SIZES, rotary_dims=8)
CONFIG = ModelConfig(
    "qwen3_5", 320, E, 2, 4, 2, 32, 64, 1e-6, 1e4, 512, True, False, True, hybrid=HYBRID
)  # fmt: skip


def whole_numbers(seed: int, *shape: int) -> mx.array:
    """Small enough that a sum of products is exact in float32, in whatever order it is made."""
    return mx.array(np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32))


def delta_net_weights() -> dict[str, mx.array]:
    """Products with the projections in front are exact for `whole_numbers`: only the layer itself rounds."""
    sizes = SIZES
    rows = {"qkv": sizes.conv_dim, "z": sizes.value_dim, "b": 4, "a": 4}
    weights = {
        f"in_proj_{name}.weight": whole_numbers(i, n, E) / 16 for i, (name, n) in enumerate(rows.items())
    }
    weights |= {"conv1d.weight": random_array(5, sizes.conv_dim, 4), "norm.weight": random_array(8, 24)}
    weights |= {"dt_bias": random_array(6, 4), "A_log": random_array(7, 4)}
    return weights | {"out_proj.weight": whole_numbers(9, E, sizes.value_dim) / 16}


def rule_alone() -> tuple[dict[str, mx.array], list[slice]]:
    """Weights with which a layer projects nothing: its x is qkv, z, a and b in a row; and where these are."""
    sizes, start, parts = SIZES, 0, []
    total = sizes.conv_dim + sizes.value_dim + 8
    weights = delta_net_weights() | {"out_proj.weight": mx.eye(sizes.value_dim)}
    for name, rows in (("qkv", sizes.conv_dim), ("z", sizes.value_dim), ("a", 4), ("b", 4)):
        weights[f"in_proj_{name}.weight"] = mx.eye(total)[start : start + rows]
        parts.append(slice(start, start + rows))
        start += rows
    return weights, parts


def rule_of(llm: Any, weights: dict[str, mx.array]) -> Any:
    names = ("conv1d.weight", "A_log", "dt_bias")
    norm = llm.RMSNorm(SIZES.value_head_dim, weights["norm.weight"], CONFIG.rms_norm_eps)
    return llm.GatedDeltaRule(SIZES, *(weights[name] for name in names), norm)


def attention_weights() -> dict[str, mx.array]:
    heads, groups, dim = CONFIG.num_attention_heads, CONFIG.num_key_value_heads, CONFIG.head_dim
    rows = {"q": 2 * heads * dim, "k": groups * dim, "v": groups * dim}
    weights = {f"{name}_proj.weight": random_array(i, n, E) * 0.3 for i, (name, n) in enumerate(rows.items())}
    weights |= {f"{name}_norm.weight": 1 + 0.2 * random_array(3 + i, dim) for i, name in enumerate("qk")}
    return weights | {"o_proj.weight": random_array(5, E, heads * dim) * 0.1}


def delta_net(llm: Any, weights: dict[str, mx.array] | None = None, ops: Any = None) -> Any:
    """A `DeltaNet` on arrays; without `ops` its first norm changes nothing, so that products stay exact."""

    class NormsNothing(llm.ArrayOps):
        def rms_norm(
            self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
        ) -> tuple[mx.array, mx.array]:
            return x, x

    weights = weights or delta_net_weights()
    own = layer_weights("linear_attn", weights)
    return llm.DeltaNet(ops or NormsNothing(), own, SIZES, rule_of(llm, weights))


def gated_attention(llm: Any, weights: dict[str, mx.array] | None = None) -> Any:
    """A `GatedAttention` on arrays, whose first norm has weights of one."""
    rope = llm.RoPE(HYBRID.rotary_dims, 512, CONFIG.rope_theta)
    own = layer_weights("self_attn", weights or attention_weights())
    return llm.GatedAttention(llm.ArrayOps(), own, CONFIG.head_dim, rope)


def layer_weights(mixer: str, weights: dict[str, mx.array]) -> LayerWeights:
    """Those of a layer with these weights of its mixer, with norms of ones and an MLP that is never used."""
    size = len(weights["in_proj_z.weight"][0]) if mixer == "linear_attn" else E
    dtype = next(iter(weights.values())).dtype
    ones, unused = mx.ones((size,), dtype), mx.zeros((1, 1), dtype)
    layer = {f"{mixer}.{name}": w for name, w in weights.items()}
    layer |= {"input_layernorm.weight": ones, "post_attention_layernorm.weight": ones}
    layer |= {f"mlp.{part}_proj.weight": unused for part in ("gate", "up", "down")}
    return LayerWeights.of(CONFIG, layer)


def normed(x: mx.array) -> np.ndarray:
    """x in float64 as its layer's first norm leaves it."""
    wide = np.array(x.astype(mx.float32), np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + CONFIG.rms_norm_eps)


def shared_expert_weights(expert_weights: dict[str, Any]) -> dict[str, Any]:
    """Those of `MOE`'s experts, and an expert of all tokens with 48 hidden numbers."""
    size = MOE.hidden_size
    shapes = {"gate": (48, size), "up": (48, size), "down": (size, 48)}
    shared = {
        f"shared_expert.{part}_proj.weight": random_array(70 + i, *shape) * 0.2
        for i, (part, shape) in enumerate(shapes.items())
    }
    return expert_weights | shared | {"shared_expert_gate.weight": random_array(75, 1, size) * 0.3}
