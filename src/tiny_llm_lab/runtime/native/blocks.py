"""Packed matrices in the order in which the C++ kernels read them."""

from dataclasses import replace

from tiny_llm_lab.runtime.native.ops import Binding
from tiny_llm_lab.types import QuantizedWeights, Weight


def in_blocks(binding: Binding, w: QuantizedWeights) -> QuantizedWeights:
    """Returns `w` in blocks, as `QuantizedWeights` says. Its rows may be computed by this."""
    return w if w.in_blocks else replace(w.mapped(binding.in_blocks), in_blocks=w.weight.shape[-2])


def all_in_blocks(binding: Binding, weights: dict[str, Weight]) -> dict[str, Weight]:
    """Returns `weights` with all packed matrices in blocks.

    They are taken out of their dict one by one, so that memory does not hold all of them twice.
    """
    made: dict[str, Weight] = {}
    for name in list(weights):
        w = weights.pop(name)
        made[name] = in_blocks(binding, w) if isinstance(w, QuantizedWeights) else w
    return made
