"""Qwen in float64 NumPy, from the names of its checkpoint to logits; always over the whole sequence."""

from collections.abc import Callable, Mapping

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
    feed_forward = below("mlp.", weights)
    if "gate.weight" in feed_forward:
        return wide + experts.feed_forward(config, feed_forward, normed)
    return wide + mlp(feed_forward, normed)


def mlp(weights: Mapping[str, object], x: np.ndarray) -> np.ndarray:
    gate, up, down = (experts.wide(weights[f"{part}_proj.weight"]) for part in ("gate", "up", "down"))
    return (oracle.silu(x @ gate.T) * (x @ up.T)) @ down.T


Layer = Callable[[ModelConfig, Mapping[str, object], np.ndarray], np.ndarray]


def hidden(
    config: ModelConfig, weights: Mapping[str, object], tokens: object, layer: Layer = block
) -> np.ndarray:
    """tokens [B, L] -> [B, L, E], after the last norm."""
    x = experts.wide(weights["model.embed_tokens.weight"])[np.array(tokens)]
    for i in range(config.num_hidden_layers):
        x = layer(config, below(f"model.layers.{i}.", weights), x)
    return oracle.rms_norm(x, weights["model.norm.weight"], config.rms_norm_eps)


def head(config: ModelConfig, weights: Mapping[str, object]) -> np.ndarray:
    tied = config.tie_word_embeddings
    return experts.wide(weights["model.embed_tokens.weight" if tied else "lm_head.weight"])


def logits(
    config: ModelConfig, weights: Mapping[str, object], tokens: object, layer: Layer = block
) -> np.ndarray:
    """tokens [B, L] -> [B, L, V]."""
    return hidden(config, weights, tokens, layer) @ head(config, weights).T
