"""A hybrid Qwen in float64 NumPy, from loaded weights to logits, token by token over the whole sequence."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from tests.helpers import experts, oracle, qwen_oracle
from tests.helpers.experts import wide as numbers
from tests.helpers.qwen_oracle import below, head, mlp

from tiny_llm_lab.types import HybridConfig, ModelConfig, Weight

Weights = Mapping[str, Weight]


def delta_rule(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [B, L, Hv, Dv] and last states [B, Hv, Dk, Dv]: row by row, head by head, token by token.

    As the paper's equation 10 has it, with one matrix that erases: S is what is left of decay * S once k is
    erased from it by beta, and beta k v^T is added.
    """
    batch, length, heads, dk = q.shape
    out, states = np.zeros(v.shape), np.zeros((batch, heads, dk, v.shape[-1])) + state
    for b, h in np.ndindex(batch, heads):
        S = states[b, h]
        for t in range(length):
            key, rate = k[b, t, h], beta[b, t, h]
            erased = np.eye(dk) - rate * np.outer(key, key)
            S = decay[b, t, h] * erased @ S + rate * np.outer(key, v[b, t, h])
            out[b, t, h] = S.T @ q[b, t, h]
        states[b, h] = S
    return out, states


def delta_net(config: ModelConfig, hybrid: HybridConfig, weights: Weights, x: np.ndarray) -> np.ndarray:
    sizes, length = hybrid.delta_net, x.shape[1]
    w = {name.removesuffix(".weight"): numbers(each) for name, each in weights.items()}
    qkv, z, b, a = (x @ w[f"in_proj_{name}"].T for name in ("qkv", "z", "b", "a"))
    padded = np.pad(qkv, ((0, 0), (sizes.conv_kernel - 1, 0), (0, 0)))
    taps = range(sizes.conv_kernel)
    mixed = oracle.silu(sum(padded[:, tap : tap + length] * w["conv1d"][:, tap] for tap in taps))
    q, k, v = np.split(mixed, [sizes.key_dim, 2 * sizes.key_dim], axis=-1)

    def heads(part: np.ndarray) -> np.ndarray:
        part = part.reshape(*part.shape[:2], sizes.num_key_heads, sizes.key_head_dim)
        part = part / np.sqrt((part**2).sum(axis=-1, keepdims=True) + 1e-6)
        return np.repeat(part, sizes.num_value_heads // sizes.num_key_heads, axis=2)

    v = v.reshape(*v.shape[:2], sizes.num_value_heads, sizes.value_head_dim)
    decay = np.exp(-np.exp(w["A_log"]) * np.logaddexp(0, a + w["dt_bias"]))
    out, _ = delta_rule(heads(q) / np.sqrt(sizes.key_head_dim), heads(k), v, decay, 1 / (1 + np.exp(-b)))
    normed = oracle.rms_norm(out, w["norm"], config.rms_norm_eps).reshape(z.shape)
    return normed * oracle.silu(z) @ w["out_proj"].T


def attention(config: ModelConfig, hybrid: HybridConfig, weights: Weights, x: np.ndarray) -> np.ndarray:
    w = {name.removesuffix(".weight"): numbers(each) for name, each in weights.items()}
    dim, dims, eps = config.head_dim, hybrid.rotary_dims, config.rms_norm_eps
    parts = [(x @ w[f"{name}_proj"].T).reshape(*x.shape[:2], -1, dim) for name in "qkv"]
    q, gate, k, v = parts[0][:, :, ::2], parts[0][:, :, 1::2], parts[1], parts[2]
    q, k = oracle.rms_norm(q, w["q_norm"], eps), oracle.rms_norm(k, w["k_norm"], eps)
    q, k = (
        np.concatenate(
            [oracle.rope(each[..., :dims], [0] * len(x), config.rope_theta), each[..., dims:]], axis=-1
        )
        for each in (q, k)
    )
    out = oracle.attention(*(part.transpose(0, 2, 1, 3) for part in (q, k, v)), causal=True)
    return (out.transpose(0, 2, 1, 3) / (1 + np.exp(-gate))).reshape(*x.shape[:2], -1) @ w["o_proj"].T


def feed_forward(config: ModelConfig, weights: Weights, x: np.ndarray) -> np.ndarray:
    """With experts also the one that every token uses."""
    if "gate.weight" not in weights:
        return mlp(weights, x)
    shared = mlp(below("shared_expert.", weights), x)
    gate = x @ numbers(weights["shared_expert_gate.weight"]).T
    return experts.feed_forward(config, weights, x) + shared / (1 + np.exp(-gate))


def layer(config: ModelConfig, weights: Weights, x: np.ndarray) -> np.ndarray:
    """One layer from its own weights: x [B, L, E] -> [B, L, E]."""
    assert config.hybrid is not None
    mixer, name = (delta_net, "linear_attn.") if below("linear_attn.", weights) else (attention, "self_attn.")
    normed = oracle.rms_norm(x, weights["input_layernorm.weight"], config.rms_norm_eps)
    x = x + mixer(config, config.hybrid, below(name, weights), normed)
    normed = oracle.rms_norm(x, weights["post_attention_layernorm.weight"], config.rms_norm_eps)
    return x + feed_forward(config, below("mlp.", weights), normed)


hidden = partial(qwen_oracle.hidden, layer=layer)
logits = partial(qwen_oracle.logits, layer=layer)


def draft_logits(
    config: ModelConfig, weights: Weights, tokens: np.ndarray, drafted: Sequence[int] = ()
) -> np.ndarray:
    """tokens [1, L] -> [1, L - 1 + K, V] of the draft layer: at t from t and t + 1, of the token t + 2.

    After `drafted` [K] the layer goes on from its own output.
    """
    w, eps = below("mtp.", weights), config.rms_norm_eps
    seen, following = hidden(config, weights, tokens)[:, :-1], [*tokens[0, 1:]]
    for token in (*drafted, None):
        before = oracle.rms_norm(seen, w["pre_fc_norm_hidden.weight"], eps)
        after = numbers(weights["model.embed_tokens.weight"])[None, following]
        after = oracle.rms_norm(after, w["pre_fc_norm_embedding.weight"], eps)
        x = np.concatenate([after, before], axis=-1) @ numbers(w["fc.weight"]).T
        out = oracle.rms_norm(layer(config, below("layers.0.", w), x), w["norm.weight"], eps)
        seen, following = np.concatenate([seen, out[:, -1:]], axis=1), [*following, token]
    return out @ head(config, weights).T
