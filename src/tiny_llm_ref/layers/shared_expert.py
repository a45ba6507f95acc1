"""A mixture of experts with one more expert that every token uses (Dai et al. 2024, arXiv 2401.06066)."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerWeights, ModelConfig, Weight

from .basics import linear, silu
from .moe import OpsMoE, QwenMoE


class SharedExpertMoE:
    """`QwenMoE`, and a SwiGLU network for every token, times a gate of one number."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        """`weights` hold those of `QwenMoE`, shared_expert.{gate,up,down}_proj.weight ([I, E] and [E, I]) and
        shared_expert_gate.weight [1, E].
        """
        self.routed = QwenMoE(config, weights)
        self.w_gate, self.w_up, self.w_down = (
            weights[f"shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        self.gate = weights["shared_expert_gate.weight"]

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: routed(x) + sigmoid(gate(x)) * shared(x)."""
        shared = linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)
        return self.routed(x) + mx.sigmoid(linear(x, self.gate)) * shared


class OpsSharedExpertMoE:
    """What `SharedExpertMoE` computes, on a model's operators."""

    def __init__(
        self, config: ModelConfig, weights: LayerWeights, named: Mapping[str, Weight], ops: KernelOps
    ) -> None:
        """`weights` and `named` belong to one layer; `named` has mlp.shared_expert.* and its gate."""
        self.routed, self.ops = OpsMoE(config, weights, ops), ops
        self.w_gate, self.w_up, self.w_down = (
            named[f"mlp.shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        self.gate = named["mlp.shared_expert_gate.weight"]

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E], as `SharedExpertMoE`."""
        if x.size == 0:
            return x
        shared = self.ops.swiglu(*self.ops.linear(x, [self.w_gate, self.w_up]))
        (shared,), (gate,) = self.ops.linear(shared, [self.w_down]), self.ops.linear(x, [self.gate])
        return self.routed(x) + self.ops.sigmoid_gate(shared, gate)
