"""Qwen in float64 NumPy, from the names of its checkpoint to logits; always over the whole sequence."""

from collections.abc import Mapping

import numpy as np
from tests.helpers import experts, oracle
from tests.helpers.tolerance import as_float64

from tiny_llm_lab.types import ModelConfig


def below(prefix: str, weights: Mapping[str, object]) -> dict[str, object]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def attention(config: ModelConfig, weights: Mapping[str, object], x: object, offset: int = 0) -> np.ndarray:
    wide = as_float64(x)

    def heads(name: str) -> np.ndarray:
        out = wide @ as_float64(weights[f"{name}.weight"]).T
        if config.qkv_bias:
            out = out + as_float64(weights[f"{name}.bias"])
        return out.reshape(*wide.shape[:2], -1, config.head_dim)

    q, k, v = heads("q_proj"), heads("k_proj"), heads("v_proj")
    if config.qk_norm:
        q = oracle.rms_norm(q, weights["q_norm.weight"], config.rms_norm_eps)
        k = oracle.rms_norm(k, weights["k_norm.weight"], config.rms_norm_eps)
    offsets = [offset] * len(wide)
    q, k = oracle.rope(q, offsets, config.rope_theta), oracle.rope(k, offsets, config.rope_theta)
    out = oracle.attention(*(part.transpose(0, 2, 1, 3) for part in (q, k, v)), causal=True)
    return out.transpose(0, 2, 1, 3).reshape(*wide.shape[:2], -1) @ as_float64(weights["o_proj.weight"]).T


def block(config: ModelConfig, weights: Mapping[str, object], x: object, offset: int = 0) -> np.ndarray:
    eps = config.rms_norm_eps
    wide = as_float64(x)
    normed = oracle.rms_norm(wide, weights["input_layernorm.weight"], eps)
    wide = wide + attention(config, below("self_attn.", weights), normed, offset)
    normed = oracle.rms_norm(wide, weights["post_attention_layernorm.weight"], eps)
    if "mlp.gate.weight" in weights:
        return wide + experts.feed_forward(config, below("mlp.", weights), normed)
    gate, up, down = (as_float64(weights[f"mlp.{part}_proj.weight"]) for part in ("gate", "up", "down"))
    return wide + (oracle.silu(normed @ gate.T) * (normed @ up.T)) @ down.T


def logits(config: ModelConfig, weights: Mapping[str, object], tokens: object, offset: int = 0) -> np.ndarray:
    table = as_float64(weights["model.embed_tokens.weight"])
    x = table[np.array(tokens)]
    for i in range(config.num_hidden_layers):
        x = block(config, below(f"model.layers.{i}.", weights), x, offset)
    x = oracle.rms_norm(x, weights["model.norm.weight"], config.rms_norm_eps)
    return x @ (table if config.tie_word_embeddings else as_float64(weights["lm_head.weight"])).T
