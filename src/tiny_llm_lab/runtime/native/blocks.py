"""Matrices in the order in which the C++ kernels read them."""

from dataclasses import replace
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.ops import Binding
from tiny_llm_lab.types import QuantizedWeights, Weight

_GROUP: Final = 64  # numbers of a dense row that the kernels add up at a time


def in_blocks(binding: Binding, w: Weight) -> QuantizedWeights:
    """Returns a matrix in blocks, as `QuantizedWeights` says. Its rows may be computed by this.

    The rows of a dense one have a multiple of 64 numbers.
    """
    if isinstance(w, QuantizedWeights):
        return w if w.in_blocks else replace(w.mapped(binding.in_blocks), in_blocks=w.weight.shape[-2])
    words = binding.in_blocks(w.view(mx.uint32)).view(w.dtype)
    nothing = mx.zeros((*w.shape[:-2], 0), w.dtype)
    return QuantizedWeights(words, nothing, nothing, 0, 0, in_blocks=w.shape[-2])


def all_in_blocks(binding: Binding, weights: dict[str, Weight]) -> dict[str, Weight]:
    """Returns `weights` with all matrices in blocks that the operators multiply.

    They are taken out of their dict one by one, so that memory does not hold all of them twice.
    """
    made: dict[str, Weight] = {}
    for name in list(weights):
        w = weights.pop(name)
        made[name] = in_blocks(binding, w) if _is_multiplied(name, w) else w
    return made


def _is_multiplied(name: str, w: Weight) -> bool:
    if isinstance(w, QuantizedWeights):
        return True
    is_matrix = w.ndim >= 2 and name.endswith(".weight") and not name.endswith("conv1d.weight")
    return is_matrix and w.shape[-1] % _GROUP == 0
