"""A mixture of experts: many feed-forward networks, and each token uses a few of them."""

from collections.abc import Mapping

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, ModelConfig, QuantizedWeights, Weight

from .basics import silu, softmax

# With this many uses or more, sorting them costs less than reading a matrix more than once.
_SORT_FROM = 64


def route(scores: mx.array, num_experts_per_tok: int, norm_topk_prob: bool) -> tuple[mx.array, mx.array]:
    """Returns the K experts of each token (uint32) and their shares (float32), [..., K] each.

    scores [..., N] are the products of a token with the router's row of each expert; a float32 softmax over
    all N experts turns them into probabilities. The K largest are chosen, largest first, and these
    probabilities are the shares. With `norm_topk_prob` (Qwen3) they are divided by their sum.
    """
    probs = softmax(scores.astype(mx.float32))
    experts = mx.argsort(-probs, axis=-1)[..., :num_experts_per_tok]
    shares = mx.take_along_axis(probs, experts, axis=-1)
    if norm_topk_prob:
        shares = shares / mx.sum(shares, axis=-1, keepdims=True)
    return experts, shares


def group_by_expert(experts: mx.array) -> tuple[mx.array, mx.array]:
    """Returns (order, place), which group the uses of each expert: experts [T, K] -> [T * K] each.

    Use t * K + k is token t's k-th expert. order lists the uses, sorted by expert. place says where each
    use went, so that `sorted[place]` undoes `unsorted[order]`.
    """
    order = mx.argsort(experts.reshape(-1))
    return order, mx.argsort(order)


def expert_linear(x: mx.array, w: Weight, experts: mx.array, is_sorted: bool = False) -> mx.array:
    """Returns row t of x [T, I] times the transpose of w[experts[t]] -> [T, O]; w is [N, O, I].

    With `is_sorted` you promise that equal experts are adjacent, so that each matrix is read once. If they
    are not, the result is undefined. On a CPU the product is made in float32.
    """
    # MLX's CPU backend gathers dense matrices only in float32, and packed ones are exact only in float32.
    rows = x[:, None].astype(x.dtype if mx.default_device() == mx.gpu else mx.float32)
    if not isinstance(w, QuantizedWeights):
        matrices = w.astype(rows.dtype).swapaxes(-1, -2)
        out = mx.gather_mm(rows, matrices, rhs_indices=experts, sorted_indices=is_sorted)
        return out[:, 0].astype(x.dtype)
    out = mx.gather_qmm(
        rows,
        w.weight,
        *w.scales_for(rows.dtype),
        rhs_indices=experts,
        group_size=w.group_size,
        bits=w.bits,
        mode=w.mode,
        sorted_indices=is_sorted,
    )
    return out[:, 0].astype(x.dtype)


def expert_mlp(
    x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
) -> mx.array:
    """Returns the sum of the outputs of each token's K experts, times their shares: x [T, E] -> [T, E].

    experts and shares are [T, K]; gate and up are [N, I, E], down is [N, E, I]. Expert n computes
    down_n(silu(gate_n(x)) * up_n(x)). The sum is computed in float32.
    """
    uses, per_token = experts.reshape(-1), experts.shape[-1]
    is_sorted = uses.size >= _SORT_FROM
    order, place = group_by_expert(experts) if is_sorted else [mx.arange(uses.size)] * 2
    chosen, rows = uses[order], x[order // per_token]
    gated = silu(expert_linear(rows, gate, chosen, is_sorted)) * expert_linear(rows, up, chosen, is_sorted)
    outputs = expert_linear(gated, down, chosen, is_sorted)[place].reshape(*experts.shape, -1)
    return mx.sum(outputs.astype(mx.float32) * shares[..., None], axis=-2).astype(x.dtype)


class QwenMoE:
    """The feed-forward of a Qwen3-MoE layer: a router and N SwiGLU networks (Yang et al. 2025, 2505.09388).

    Sparse experts: Shazeer et al. 2017, arXiv 1701.06538, eq. 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], ops: KernelOps) -> None:
        """`weights` has gate.weight [N, E] and, stacked over all experts, switch_mlp.gate_proj.weight and
        switch_mlp.up_proj.weight [N, I, E] and switch_mlp.down_proj.weight [N, E, I].
        """
        self.config, self.ops = config, ops
        self.router = weights["gate.weight"]
        self.experts = [weights[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")]

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> what `ops.expert_mlp` makes of each token with the experts of `ops.route`, like x."""
        if x.size == 0:
            return x
        flat, config = x.reshape(-1, x.shape[-1]), self.config
        (scores,) = self.ops.linear(flat, [self.router])
        chosen = self.ops.route(scores, config.num_experts_per_tok, config.norm_topk_prob)
        return self.ops.expert_mlp(flat, *chosen, *self.experts).reshape(x.shape)


class SharedExpertMoE(QwenMoE):
    """`QwenMoE`, and a SwiGLU network for every token, times a gate of one number (arXiv 2401.06066)."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], ops: KernelOps) -> None:
        """`weights` hold those of `QwenMoE`, shared_expert.{gate,up,down}_proj.weight ([I, E] and [E, I]) and
        shared_expert_gate.weight [1, E].
        """
        super().__init__(config, weights, ops)
        self.w_gate, self.w_up, self.w_down = (
            weights[f"shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")
        )
        self.gate = weights["shared_expert_gate.weight"]

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: experts(x) + sigmoid(gate(x)) * shared(x)."""
        if x.size == 0:
            return x
        shared = self.ops.swiglu(*self.ops.linear(x, [self.w_gate, self.w_up]))
        # The gate may be packed in another way, so it is a product of its own.
        (shared,), (gate,) = self.ops.linear(shared, [self.w_down]), self.ops.linear(x, [self.gate])
        return super().__call__(x) + self.ops.sigmoid_gate(shared, gate)
