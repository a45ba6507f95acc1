"""A mixture of experts: many feed-forward networks, of which every token uses a few."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, LayerWeights, ModelConfig, QuantizedWeights, Weight

from .basics import linear, silu, softmax

# From so many uses of an expert on, sorting costs less than reading a matrix more than once.
_SORT_FROM = 64


def route(
    x: mx.array, gate: Weight, num_experts_per_tok: int, norm_topk_prob: bool
) -> tuple[mx.array, mx.array]:
    """x [..., E], gate [N, E] -> the K experts of every token and their weights, [..., K] each.

    Scores are gate's products with x, and a softmax over all N experts makes them probabilities, in
    float32. The K largest are chosen, largest first; their numbers are the weights, float32, divided by
    their sum if `norm_topk_prob` (Qwen3: yes). Experts are uint32.
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
    """The order that puts all uses of the same expert side by side: experts [T, K] -> (order, place).

    Use t * K + k is token t's k-th expert. order [T * K]: the uses, sorted by expert. place
    [T * K]: where each use went, so that `sorted[place]` undoes `unsorted[order]`.
    """
    order = mx.argsort(experts.reshape(-1))
    return order, mx.argsort(order)


def expert_linear(x: mx.array, w: Weight, experts: mx.array, is_sorted: bool = False) -> mx.array:
    """Multiply row t of x [T, I] by the transpose of w[experts[t]] -> [T, O]; w is [N, O, I].

    `is_sorted` promises that equal experts are side by side, so that each matrix is read once; the result
    of a broken promise is undefined. Takes x in float32, and on a GPU in any dtype.
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
    """The feed-forward of a Qwen3-MoE layer: a router, and N networks SwiGLU (Yang et al. 2025, 2505.09388).

    Sparse experts: Shazeer et al. 2017, arXiv 1701.06538, eq. 1.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        """`weights` hold gate.weight [N, E], and stacked for all experts switch_mlp.gate_proj.weight and
        switch_mlp.up_proj.weight [N, I, E] and switch_mlp.down_proj.weight [N, E, I].
        """
        self.config = config
        self.gate = weights["gate.weight"]
        self.w_gate, self.w_up, self.w_down = (
            weights[f"switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
        )

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., E] -> [..., E]: the outputs of each token's experts, summed with the router's weights.

        Expert n computes down_n(silu(gate_n(x)) * up_n(x)). The sum is made in float32.
        """
        if x.size == 0:
            return x
        flat, config = x.reshape(-1, x.shape[-1]), self.config
        experts, weights = route(flat, self.gate, config.num_experts_per_tok, config.norm_topk_prob)
        outputs = self._gathered(flat, experts) if _can_gather(x.dtype) else self._one_by_one(flat, experts)
        outputs = outputs.reshape(*experts.shape, -1).astype(mx.float32)
        return mx.sum(outputs * weights[..., None], axis=-2).astype(x.dtype).reshape(x.shape)

    def _gathered(self, x: mx.array, experts: mx.array) -> mx.array:
        """The output of every use, [T * K, E], by operators that pick a matrix for each row."""
        uses, per_token = experts.reshape(-1), experts.shape[-1]
        is_sorted = uses.size >= _SORT_FROM
        order, place = group_by_expert(experts) if is_sorted else (mx.arange(uses.size), None)
        chosen, rows = uses[order], x[order // per_token]
        gated = silu(expert_linear(rows, self.w_gate, chosen, is_sorted))
        raised = expert_linear(rows, self.w_up, chosen, is_sorted)
        out = expert_linear(gated * raised, self.w_down, chosen, is_sorted)
        return out if place is None else out[place]

    def _one_by_one(self, x: mx.array, experts: mx.array) -> mx.array:
        """The same, one expert after the other: on a CPU nothing gathers 16 bits.

        Which experts are used must be known now, so this waits for the router.
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
    """What `QwenMoE` computes, by a model's operators."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, ops: KernelOps) -> None:
        """`weights` are those of a layer with a router."""
        self.config, self.weights, self.ops = config, weights, ops

    def __call__(self, x: mx.array) -> mx.array:
        """As `QwenMoE`; the operators choose the dtype of the sum."""
        w, config = self.weights, self.config
        if x.size == 0 or w.router is None:
            return x
        flat = x.reshape(-1, x.shape[-1])
        scores = self.ops.linear(flat, [w.router])[0]
        chosen = _largest(scores, config.num_experts_per_tok, config.norm_topk_prob)
        return self.ops.expert_mlp(flat, *chosen, w.gate, w.up, w.down).reshape(x.shape)


def _can_gather(dtype: mx.Dtype) -> bool:
    # On its CPU backend MLX gathers dense matrices in float32 only, and packed ones exactly in float32 only.
    return mx.default_device() == mx.gpu or dtype == mx.float32


def _of(expert: int, w: Weight) -> Weight:
    """One expert's matrix [O, I] of all experts' [N, O, I]."""
    return w.mapped(lambda part: part[expert]) if isinstance(w, QuantizedWeights) else w[expert]
