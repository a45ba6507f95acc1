"""Hybrid Qwens small enough for a test: seeded weights, bytes for tokens."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from tests.helpers.toy import QWEN2, QWEN3

from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import DeltaNetSizes, HybridConfig, ModelConfig, Weight

HYBRID = replace(
    QWEN3,
    model_type="qwen3_5",
    num_hidden_layers=3,
    hybrid=HybridConfig(
        ("linear_attention", "full_attention", "linear_attention"),
        DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=12, value_head_dim=20, conv_kernel=4),
        rotary_dims=8,
    ),
)
QWEN2_MOE = replace(
    QWEN2,
    model_type="qwen2_moe",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=48,
)
HYBRID_MOE = replace(
    HYBRID,
    model_type="qwen3_5_moe",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    shared_expert_intermediate_size=48,
)


def hybrid_weights(config: ModelConfig, seed: int = 0) -> dict[str, Weight]:
    """A whole checkpoint in float32: matrices that double a vector's length, vectors around 1."""
    rng = np.random.default_rng(seed)
    return {
        name: mx.array(
            (
                1 + 0.3 * rng.normal(size=shape)
                if len(shape) == 1
                else rng.normal(size=shape) * 2 / np.sqrt(shape[-1])
            ).astype(np.float32)
        )
        for name, shape in parameter_shapes(config)
    }


def draft_weights(config: ModelConfig, seed: int = 7) -> dict[str, Weight]:
    """A draft layer under mtp.: a layer with attention, a matrix for two inputs, and three norms."""
    one = replace(
        config,
        num_hidden_layers=1,
        hybrid=None if config.hybrid is None else replace(config.hybrid, mixers=("full_attention",)),
    )
    prefix, size = "model.layers.0.", config.hidden_size
    block = {
        name.replace(prefix, "mtp.layers.0."): w
        for name, w in hybrid_weights(one, seed).items()
        if name.startswith(prefix)
    }
    rng = np.random.default_rng(seed)
    fc = mx.array((rng.normal(size=(size, 2 * size)) / np.sqrt(size)).astype(np.float32))
    norms = {
        f"mtp.{name}.weight": mx.array((1 + 0.3 * rng.normal(size=size)).astype(np.float32))
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    return {**block, **norms, "mtp.fc.weight": fc}
