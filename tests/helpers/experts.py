"""A mixture of experts for tests: a small checkpoint, and its feed-forward as a loop in float64."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tests.helpers import oracle
from tests.helpers.matrices import numbers
from tests.helpers.tolerance import as_float64, assert_close, rounding
from tests.helpers.toy import QWEN3, ByteTokenizer, toy_weights

from tiny_llm_lab.types import Checkpoint, ModelConfig, QuantizedWeights, Weight

MOE = replace(
    QWEN3,
    model_type="qwen3_moe",
    num_hidden_layers=3,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    mlp_only_layers=(1,),
)


def expert_weights(config: ModelConfig, seed: int = 0) -> dict[str, Weight]:
    """The parameters below `mlp.` of a layer with experts, in float32."""
    rng = np.random.default_rng(seed)
    N, E, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
    shapes = {
        "gate.weight": (N, E),
        "switch_mlp.gate_proj.weight": (N, inner, E),
        "switch_mlp.up_proj.weight": (N, inner, E),
        "switch_mlp.down_proj.weight": (N, E, inner),
    }
    return {
        name: mx.array((rng.normal(size=shape) * 2 / np.sqrt(shape[-1])).astype(np.float32))
        for name, shape in shapes.items()
    }


def packed(weights: Mapping[str, Weight], bits: int = 4, group_size: int = 32) -> dict[str, Weight]:
    """The same parameters with every expert's matrices packed; the router stays dense."""
    return {name: w if name == "gate.weight" else pack(w, bits, group_size) for name, w in weights.items()}


def pack(w: Weight, bits: int = 4, group_size: int = 32) -> QuantizedWeights:
    assert isinstance(w, mx.array)
    return QuantizedWeights(*mx.quantize(w, group_size=group_size, bits=bits), group_size, bits)


def in_dtype(weights: Mapping[str, Weight], dtype: mx.Dtype) -> dict[str, Weight]:
    def cast(w: Weight) -> Weight:
        if isinstance(w, QuantizedWeights):
            return replace(w, scales=w.scales.astype(dtype), biases=w.biases.astype(dtype))
        return w.astype(dtype)

    return {name: cast(w) for name, w in weights.items()}


def wide(w: Weight) -> np.ndarray:
    """All matrices of one parameter in float64, unpacked."""
    if not isinstance(w, QuantizedWeights):
        return as_float64(w)
    if w.weight.ndim == 2:
        return numbers(w)
    parts = zip(w.weight, w.scales, w.biases, strict=True)
    return np.stack([numbers(QuantizedWeights(*part, w.group_size, w.bits)) for part in parts])


def routed(config: ModelConfig, gate: Weight, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The experts of one token x [E], likeliest first, and their weights."""
    scores = oracle.softmax(wide(gate) @ x)
    experts = np.argsort(-scores)[: config.num_experts_per_tok]
    weights = scores[experts]
    return experts, weights / weights.sum() if config.norm_topk_prob else weights


def assert_routed(route: Callable[..., Any], scores: mx.array, per_token: int, is_normed: bool) -> None:
    """`route` chooses the experts of scores [T, N] as float64 does; of equal ones the first."""
    chosen, shares = route(scores, per_token, is_normed)
    order = np.argsort(-as_float64(scores), axis=-1, kind="stable")[:, :per_token]
    want = np.take_along_axis(oracle.softmax(as_float64(scores)), order, -1)
    assert chosen.dtype == mx.uint32 and np.array(chosen).tolist() == order.tolist()
    want = want / want.sum(-1, keepdims=True) if is_normed else want
    assert_close(shares, want, rounding(mx.float32, 16), dtype=mx.float32)


def feed_forward(config: ModelConfig, weights: Mapping[str, Weight], x: object) -> np.ndarray:
    """x [..., E] through its experts, one token and one expert at a time."""
    gate, up, down = (wide(weights[f"switch_mlp.{part}_proj.weight"]) for part in ("gate", "up", "down"))
    flat = as_float64(x).reshape(-1, config.hidden_size)
    out = np.zeros_like(flat)
    for token, row in enumerate(flat):
        for expert, weight in zip(*routed(config, weights["gate.weight"], row), strict=True):
            hidden = oracle.silu(gate[expert] @ row) * (up[expert] @ row)
            out[token] += weight * (down[expert] @ hidden)
    return out.reshape(np.shape(as_float64(x)))


def moe_weights(config: ModelConfig, seed: int = 0) -> dict[str, Weight]:
    """A whole checkpoint: `toy_weights`, with experts in the layers that have them."""
    weights: dict[str, Weight] = {}
    for name, w in toy_weights(config, seed).items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else -1
        if not (".mlp." in name and config.has_experts(layer)):
            weights[name] = w
    for layer in filter(config.has_experts, range(config.num_hidden_layers)):
        for name, w in expert_weights(config, seed + layer + 1).items():
            weights[f"model.layers.{layer}.mlp.{name}"] = w
    return weights


def moe_checkpoint(config: ModelConfig = MOE) -> Checkpoint:
    return Checkpoint("toy", Path("toy"), config, moe_weights(config), ByteTokenizer(), mx.float32)
