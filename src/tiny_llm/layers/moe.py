"""A mixture of experts: many feed-forward networks, and each token uses a few of them."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, ModelConfig, Weight


def route(scores: mx.array, num_experts_per_tok: int, norm_topk_prob: bool) -> tuple[mx.array, mx.array]:
    """Returns the K experts of each token (uint32) and their shares (float32), [..., K] each.

    scores [..., N] are the products of a token with the router's row of each expert; a float32 softmax over
    all N experts turns them into probabilities. The K largest are chosen, largest first, and these
    probabilities are the shares. With `norm_topk_prob` (Qwen3) they are divided by their sum.
    """
    raise NotImplementedError("task 3.10.1")


def group_by_expert(experts: mx.array) -> tuple[mx.array, mx.array]:
    """Returns (order, place), which group the uses of each expert: experts [T, K] -> [T * K] each.

    Use t * K + k is token t's k-th expert. order lists the uses, sorted by expert. place says where each
    use went, so that `sorted[place]` undoes `unsorted[order]`.
    """
    raise NotImplementedError("task 3.10.2")


def expert_linear(x: mx.array, w: Weight, experts: mx.array, is_sorted: bool = False) -> mx.array:
    """Returns row t of x [T, I] times the transpose of w[experts[t]] -> [T, O]; w is [N, O, I].

    With `is_sorted` you promise that equal experts are adjacent, so that each matrix is read once. If they
    are not, the result is undefined. On a CPU the product is made in float32.
    """
    raise NotImplementedError("task 3.10.2")


def expert_mlp(
    x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
) -> mx.array:
    """Returns the sum of the outputs of each token's K experts, times their shares: x [T, E] -> [T, E].

    experts and shares are [T, K]; gate and up are [N, I, E], down is [N, E, I]. Expert n computes
    down_n(silu(gate_n(x)) * up_n(x)). The sum is computed in float32.
    """
    raise NotImplementedError("task 3.10.2")


class QwenMoE:
    """The feed-forward of a Qwen3-MoE layer: a router and N SwiGLU networks (Yang et al. 2025, 2505.09388).

    Sparse experts: Shazeer et al. 2017, arXiv 1701.06538, eq. 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], ops: KernelOps) -> None:
        """`weights` has gate.weight [N, E] and, stacked over all experts, switch_mlp.gate_proj.weight and
        switch_mlp.up_proj.weight [N, I, E] and switch_mlp.down_proj.weight [N, E, I].
        """
        raise NotImplementedError("task 3.10.2")

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> what `ops.expert_mlp` makes of each token with the experts of `ops.route`, like x."""
        raise NotImplementedError("task 3.10.2")


class SharedExpertMoE(QwenMoE):
    """`QwenMoE`, and a SwiGLU network for every token, times a gate of one number (arXiv 2401.06066)."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], ops: KernelOps) -> None:
        """`weights` hold those of `QwenMoE`, shared_expert.{gate,up,down}_proj.weight ([I, E] and [E, I]) and
        shared_expert_gate.weight [1, E].
        """
        raise NotImplementedError("task 4.3.5")

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: experts(x) + sigmoid(gate(x)) * shared(x)."""
        raise NotImplementedError("task 4.3.5")
