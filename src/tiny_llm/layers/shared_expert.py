"""A mixture of experts with one more expert that every token uses (Dai et al. 2024, arXiv 2401.06066)."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import ModelConfig, Weight


class SharedExpertMoE:
    """`QwenMoE`, and a SwiGLU network for every token, times a gate of one number."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        """`weights` hold those of `QwenMoE`, shared_expert.{gate,up,down}_proj.weight ([I, E] and [E, I]) and
        shared_expert_gate.weight [1, E].
        """
        raise NotImplementedError("task 4.3.5")

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: routed(x) + sigmoid(gate(x)) * shared(x)."""
        raise NotImplementedError("task 4.3.5")
