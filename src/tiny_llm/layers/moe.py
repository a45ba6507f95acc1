"""A mixture of experts: many feed-forward networks, of which every token uses a few."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerWeights, ModelConfig, Weight


def route(
    x: mx.array, gate: Weight, num_experts_per_tok: int, norm_topk_prob: bool
) -> tuple[mx.array, mx.array]:
    """x [..., E], gate [N, E] -> the K experts of every token and their weights, [..., K] each.

    Scores are gate's products with x, and a softmax over all N experts makes them probabilities, in
    float32. The K largest are chosen, largest first; their numbers are the weights, float32, divided by
    their sum if `norm_topk_prob` (Qwen3: yes). Experts are uint32.
    """
    raise NotImplementedError("task 3.10.1")


def group_by_expert(experts: mx.array) -> tuple[mx.array, mx.array]:
    """The order that puts all uses of the same expert side by side: experts [T, K] -> (order, place).

    Use t * K + k is token t's k-th expert. order [T * K]: the uses, sorted by expert. place
    [T * K]: where each use went, so that `sorted[place]` undoes `unsorted[order]`.
    """
    raise NotImplementedError("task 3.10.2")


def expert_linear(x: mx.array, w: Weight, experts: mx.array, is_sorted: bool = False) -> mx.array:
    """Multiply row t of x [T, I] by the transpose of w[experts[t]] -> [T, O]; w is [N, O, I].

    `is_sorted` promises that equal experts are side by side, so that each matrix is read once; the result
    of a broken promise is undefined. Takes x in float32, and on a GPU in any dtype.
    """
    raise NotImplementedError("task 3.10.2")


class QwenMoE:
    """The feed-forward of a Qwen3-MoE layer: a router, and N networks SwiGLU (Yang et al. 2025, 2505.09388).

    Sparse experts: Shazeer et al. 2017, arXiv 1701.06538, eq. 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        """`weights` hold gate.weight [N, E], and stacked for all experts switch_mlp.gate_proj.weight and
        switch_mlp.up_proj.weight [N, I, E] and switch_mlp.down_proj.weight [N, E, I].
        """
        raise NotImplementedError("task 3.10.2")

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: the outputs of each token's experts, summed with the router's weights.

        Expert n computes down_n(silu(gate_n(x)) * up_n(x)). The sum is made in float32.
        """
        raise NotImplementedError("task 3.10.2")


class OpsMoE:
    """What `QwenMoE` computes, by a model's operators."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, ops: KernelOps) -> None:
        """`weights` are those of a layer with a router."""
        raise NotImplementedError("task 3.10.2")

    def __call__(self, x: mx.array) -> mx.array:
        """As `QwenMoE`; the operators choose the dtype of the sum."""
        raise NotImplementedError("task 3.10.2")
