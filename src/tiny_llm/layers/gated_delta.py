"""A gated delta net between its projections, for the packed tokens of several sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import mlx.core as mx

from tiny_llm_lab.types import DeltaKernel, DeltaNetSizes, DeltaState

from .delta_rule import causal_conv, decay_of, gated_delta_rule, l2_normalised
from .layer_norm import RMSNorm

QKV = tuple[mx.array, mx.array, mx.array]
# The arguments and results of `gated_delta_rule`.
Recurrence = Callable[[QKV, mx.array, mx.array, mx.array, int], tuple[mx.array, mx.array]]


@dataclass
class GatedDeltaRule:
    """Convolution, delta rule and gated norm, each sequence by itself."""

    sizes: DeltaNetSizes
    conv: mx.array  # [C, K]
    a_log: mx.array  # [Hv]
    dt_bias: mx.array  # [Hv]
    norm: RMSNorm  # over [..., Dv]
    rule: Recurrence = gated_delta_rule

    def __call__(
        self, rows: Sequence[mx.array], states: Sequence[DeltaState], starts: Sequence[int]
    ) -> tuple[mx.array, list[DeltaState]]:
        """`rows` are qkv [T, C], z [T, Hv Dv], a and b [T, Hv] -> out [T, Hv Dv] float32, and new states.

        Rows starts[r] to starts[r + 1] - 1 are sequence r's, which goes on from states[r].
        """
        outs, after = [], []
        for (start, end), state in zip(pairwise(starts), states, strict=True):
            out, new = self.batch([part[None, start:end] for part in rows], [state])
            outs.append(out[0])
            after += new
        return mx.concatenate(outs), after

    def batch(
        self, rows: Sequence[mx.array], states: Sequence[DeltaState]
    ) -> tuple[mx.array, list[DeltaState]]:
        """As a call, for sequences of n tokens each: rows [B, n, ...] -> out [B, n, Hv Dv]."""
        qkv, z, a, b = (part.astype(mx.float32) for part in rows)
        tails, matrices = (mx.stack(list(part)) for part in zip(*states, strict=True))
        length = qkv.shape[1]
        heads = self._heads(causal_conv(qkv, tails, self.conv))
        decay, beta = decay_of(a, self.a_log, self.dt_bias), mx.sigmoid(b)
        out, new = self.rule(heads, decay, beta, matrices, length)
        kept = mx.contiguous(mx.concatenate([tails, qkv], axis=1)[:, length:])
        out = self.norm(out).flatten(2) * (z * mx.sigmoid(z))
        parts = (mx.split(part, len(states)) for part in (kept, new))
        return out, [(tail.squeeze(0), state.squeeze(0)) for tail, state in zip(*parts, strict=True)]

    def _heads(self, mixed: mx.array) -> QKV:
        """Queries and keys [B, L, Hv, Dk] and values [B, L, Hv, Dv] of mixed [B, L, C]."""
        sizes = self.sizes
        shared = sizes.num_value_heads // sizes.num_key_heads
        q, k, v = mx.split(mixed, [sizes.key_dim, 2 * sizes.key_dim], axis=-1)
        q, k = (part.reshape(*part.shape[:2], -1, sizes.key_head_dim) for part in (q, k))
        q, k = l2_normalised(q) * sizes.key_head_dim**-0.5, l2_normalised(k)
        q, k = (mx.repeat(part, shared, axis=2) for part in (q, k))
        return q, k, v.reshape(*v.shape[:2], -1, sizes.value_head_dim)


class KernelDeltaRule:
    """What `GatedDeltaRule` computes, by the C++ kernel."""

    def __init__(self, kernel: DeltaKernel, rule: GatedDeltaRule) -> None:
        """Sets the weights of `rule` as the kernel reads them: conv [K, C], a_log, dt_bias, norm and eps."""
        self.kernel, self.conv = kernel, mx.contiguous(rule.conv.T)
        self.a_log, self.dt_bias = rule.a_log, rule.dt_bias
        self.norm, self.eps = rule.norm.weight, rule.norm.eps

    def __call__(
        self, rows: Sequence[mx.array], states: Sequence[DeltaState], starts: Sequence[int]
    ) -> tuple[mx.array, list[DeltaState]]:
        """As `GatedDeltaRule`; the result has the dtype of `rows`."""
        return self.kernel(rows, self, states, starts)
