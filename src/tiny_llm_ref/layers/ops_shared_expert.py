"""A mixture of experts with a shared one, on a model's operators."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerWeights, ModelConfig, Weight

from .moe import OpsMoE


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
