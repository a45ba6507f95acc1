"""Activations rounded to 8 bits in groups, by arrays: what any size of group costs, whatever a kernel has."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.cpp_ops import UnevenCppOps
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.types import QuantizedWeights, Weight
from tiny_llm_lab.types.packages import PACKAGES


def rounded(x: mx.array, group: int) -> mx.array:
    """x [..., I] in float32, each `group` of I as integers from -127 to 127 times its largest / 127."""
    groups = mx.unflatten(x.astype(mx.float32), -1, (-1, group))
    scale = mx.max(mx.abs(groups), axis=-1, keepdims=True) / 127
    # As the kernels do: half of the largest, 63.5, then goes where they put it.
    inverse = mx.where(scale == 0, 0, 1 / mx.where(scale == 0, 1, scale))
    return mx.flatten(mx.round(groups * inverse) * scale, -2)


class ChangedOps(UnevenCppOps):
    """The C++ kernels; before a product with packed weights `change` makes its activations others."""

    def __init__(self, change: Callable[[mx.array], mx.array]) -> None:
        """`change` takes activations [..., I], and returns as many in any dtype."""
        super().__init__(native.load(PACKAGES["ref"]), MlxOps(widens=True))
        self._change = change

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        if not all(isinstance(w, QuantizedWeights) for w in weights):
            return super().linear(x, weights, biases)
        return [out.astype(x.dtype) for out in super().linear(self._change(x), weights, biases)]
