"""A gated delta net between its projections, for the packed tokens of several sequences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.types import DeltaKernel, DeltaNetSizes, DeltaState

from .delta_rule import gated_delta_rule
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
        raise NotImplementedError("task 4.3.1")

    def batch(
        self, rows: Sequence[mx.array], states: Sequence[DeltaState]
    ) -> tuple[mx.array, list[DeltaState]]:
        """As a call, for sequences of n tokens each: rows [B, n, ...] -> out [B, n, Hv Dv]."""
        raise NotImplementedError("task 4.3.1")


class KernelDeltaRule:
    """What `GatedDeltaRule` computes, by the C++ kernel."""

    def __init__(self, kernel: DeltaKernel, rule: GatedDeltaRule) -> None:
        """Sets the weights of `rule` as the kernel reads them: conv [K, C], a_log, dt_bias, norm and eps."""
        raise NotImplementedError("task 4.3.6")

    def __call__(
        self, rows: Sequence[mx.array], states: Sequence[DeltaState], starts: Sequence[int]
    ) -> tuple[mx.array, list[DeltaState]]:
        """As `GatedDeltaRule`; the result has the dtype of `rows`."""
        raise NotImplementedError("task 4.3.6")
