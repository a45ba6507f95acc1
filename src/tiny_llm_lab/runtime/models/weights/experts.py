"""The matrices of a layer's experts: stacked in mlx-lm's checkpoints, numbered or fused in Hugging Face's."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.models.weights.parameters import EXPERTS, ParameterShape
from tiny_llm_lab.types import QuantizedWeights, UserError, Weight

# Names without ".weight": the matrices of all experts, those of gate above those of up.
FUSED_GATE_UP: Final = "mlp.experts.gate_up_proj"
FUSED_DOWN: Final = "mlp.experts.down_proj"


def numbered(name: str, count: int) -> list[str]:
    """Hugging Face's names of what mlx-lm stacks under `name`, one for each of `count` experts."""
    return [name.replace(EXPERTS, f"mlp.experts.{expert}") for expert in range(count)]


def stack_experts(weights: dict[str, Weight], parameters: Iterable[tuple[str, ParameterShape]]) -> None:
    """Replace the numbered matrices in `weights` by their stacks, [N, O, I]; others stay as they are.

    Raises UserError when the experts of one layer are packed in different ways.
    """
    for name, shape in parameters:
        if f".{EXPERTS}." in name and name not in weights:
            # Popped, so that no more than one parameter of one layer exists twice.
            weights[name] = _stacked(name, [weights.pop(single) for single in numbered(name, shape[0])])


def split_experts(weights: dict[str, Weight]) -> None:
    """Replace the fused matrices in `weights`, gate above up [N, 2 I, E], by one stack of each."""
    for name in [name for name in weights if name.endswith(FUSED_GATE_UP)]:
        layer = name.removesuffix(FUSED_GATE_UP) + EXPERTS
        gate, up = mx.split(cast(mx.array, weights.pop(name)), 2, axis=1)
        for part, half in (("gate", gate), ("up", up)):
            weights[f"{layer}.{part}_proj.weight"] = of_its_own(half)
        weights[f"{layer}.down_proj.weight"] = weights.pop(name.removesuffix(FUSED_GATE_UP) + FUSED_DOWN)


def _stacked(name: str, parts: list[Weight]) -> Weight:
    packed = [part for part in parts if isinstance(part, QuantizedWeights)]
    dense = [part for part in parts if isinstance(part, mx.array)]
    if dense and not packed:
        return _of(dense)
    packings = {(part.bits, part.group_size, part.mode) for part in packed}
    if dense or len(packings) > 1:
        raise UserError(f"{name}: its experts are packed in different ways: choose another checkpoint")
    biases = [part.biases for part in packed if part.biases is not None]
    return replace(
        packed[0],
        weight=_of([part.weight for part in packed]),
        scales=_of([part.scales for part in packed]),
        biases=_of(biases) if biases else None,
    )


def _of(arrays: list[mx.array]) -> mx.array:
    return evaluated(mx.stack(arrays))


def of_its_own(part: mx.array) -> mx.array:
    """A part of an array as a copy: a view would keep the whole in memory."""
    return evaluated(mx.contiguous(part))


def evaluated(array: mx.array) -> mx.array:
    """The array, computed now."""
    mx.eval(array)
    return array
