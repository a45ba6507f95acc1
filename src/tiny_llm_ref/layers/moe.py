"""A mixture of experts: many feed-forward networks, and each token uses a few of them."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerWeights, ModelConfig, QuantizedWeights, Weight

from .basics import linear, silu, softmax

# With this many uses or more, sorting them costs less than reading a matrix more than once.
_SORT_FROM = 64


def route(
    x: mx.array, gate: Weight, num_experts_per_tok: int, norm_topk_prob: bool
) -> tuple[mx.array, mx.array]:
    """Returns the K experts of each token (uint32) and their weights (float32), [..., K] each.

    x is [..., E], gate is [N, E]. An expert's score is the product of its row of gate with x; a float32
    softmax over all N experts turns scores into probabilities. The K largest are chosen, largest first, and
    these probabilities are the weights. With `norm_topk_prob` (Qwen3) they are divided by their sum.
    """
    return _largest(linear(x, gate), num_experts_per_tok, norm_topk_prob)


def _largest(scores: mx.array, num_experts: int, norm_topk_prob: bool) -> tuple[mx.array, mx.array]:
    scores = softmax(scores.astype(mx.float32))
    experts = mx.argsort(-scores, axis=-1)[..., :num_experts]
    weights = mx.take_along_axis(scores, experts, axis=-1)
    if norm_topk_prob:
        weights = weights / mx.sum(weights, axis=-1, keepdims=True)
    return experts, weights


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
    are not, the result is undefined. Takes x in float32, and on a GPU in any dtype.
    """
    rows = x[:, None]
    if not isinstance(w, QuantizedWeights):
        matrices = w.swapaxes(-1, -2)
        return mx.gather_mm(rows, matrices, rhs_indices=experts, sorted_indices=is_sorted)[:, 0]
    out = mx.gather_qmm(
        rows,
        w.weight,
        w.scales,
        w.biases,
        rhs_indices=experts,
        group_size=w.group_size,
        bits=w.bits,
        mode=w.mode,
        sorted_indices=is_sorted,
    )
    return out[:, 0]


class QwenMoE:
    """The feed-forward of a Qwen3-MoE layer: a router and N SwiGLU networks (Yang et al. 2025, 2505.09388).

    Sparse experts: Shazeer et al. 2017, arXiv 1701.06538, eq. 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        """`weights` has gate.weight [N, E] and, stacked over all experts, switch_mlp.gate_proj.weight and
        switch_mlp.up_proj.weight [N, I, E] and switch_mlp.down_proj.weight [N, E, I].
        """
        self.config = config
        self.gate = weights["gate.weight"]
        self.w_gate, self.w_up, self.w_down = (
            weights[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
        )

    def __call__(self, x: mx.array) -> mx.array:
        """Returns the sum of each token's expert outputs, weighted by the router: [..., E] -> [..., E].

        Expert n computes down_n(silu(gate_n(x)) * up_n(x)). The sum is computed in float32.
        """
        if x.size == 0:
            return x
        flat, config = x.reshape(-1, x.shape[-1]), self.config
        experts, weights = route(flat, self.gate, config.num_experts_per_tok, config.norm_topk_prob)
        outputs = self._gathered(flat, experts) if _can_gather(x.dtype) else self._one_by_one(flat, experts)
        outputs = outputs.reshape(*experts.shape, -1).astype(mx.float32)
        return mx.sum(outputs * weights[..., None], axis=-2).astype(x.dtype).reshape(x.shape)

    def _gathered(self, x: mx.array, experts: mx.array) -> mx.array:
        """Returns the output of every use, [T * K, E], with operators that pick a matrix for each row."""
        uses, per_token = experts.reshape(-1), experts.shape[-1]
        is_sorted = uses.size >= _SORT_FROM
        order, place = group_by_expert(experts) if is_sorted else (mx.arange(uses.size), None)
        chosen, rows = uses[order], x[order // per_token]
        gated = silu(expert_linear(rows, self.w_gate, chosen, is_sorted))
        raised = expert_linear(rows, self.w_up, chosen, is_sorted)
        out = expert_linear(gated * raised, self.w_down, chosen, is_sorted)
        return out if place is None else out[place]

    def _one_by_one(self, x: mx.array, experts: mx.array) -> mx.array:
        """Returns the same, one expert at a time, because no CPU operator gathers 16-bit matrices.

        It waits for the router, because it must know which experts are used.
        """
        order, place = group_by_expert(experts)
        rows, start, outputs = x[order // experts.shape[-1]], 0, []
        uses = cast(list[int], experts.reshape(-1).tolist())
        for expert, count in sorted(Counter(uses).items()):
            outputs.append(self._expert(expert, rows[start : start + count]))
            start += count
        return mx.concatenate(outputs)[place]

    def _expert(self, expert: int, x: mx.array) -> mx.array:
        gate, up, down = (_of(expert, w) for w in (self.w_gate, self.w_up, self.w_down))
        return linear(silu(linear(x, gate)) * linear(x, up), down)


class OpsMoE:
    """Computes what `QwenMoE` computes, on a model's operators."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, ops: KernelOps) -> None:
        """`weights` belong to a layer with a router."""
        self.config, self.weights, self.ops = config, weights, ops

    def __call__(self, x: mx.array) -> mx.array:
        """Like `QwenMoE`, except that the operators choose the dtype of the sum."""
        w, config = self.weights, self.config
        if x.size == 0 or w.router is None:
            return x
        flat = x.reshape(-1, x.shape[-1])
        scores = self.ops.linear(flat, [w.router])[0]
        chosen = _largest(scores, config.num_experts_per_tok, config.norm_topk_prob)
        return self.ops.expert_mlp(flat, *chosen, w.gate, w.up, w.down).reshape(x.shape)


def _can_gather(dtype: mx.Dtype) -> bool:
    # MLX's CPU backend gathers dense matrices only in float32, and packed ones are exact only in float32.
    return mx.default_device() == mx.gpu or dtype == mx.float32


def _of(expert: int, w: Weight) -> Weight:
    """Returns one expert's matrix [O, I] from the stack [N, O, I]."""
    return w.mapped(lambda part: part[expert]) if isinstance(w, QuantizedWeights) else w[expert]
