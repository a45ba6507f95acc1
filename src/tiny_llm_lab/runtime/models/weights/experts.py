"""The matrices of a layer's experts: stacked in mlx-lm's checkpoints, numbered in Hugging Face's."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import mlx.core as mx

from tiny_llm_lab.runtime.models.weights.parameters import EXPERTS, ParameterShape, parameter_shapes
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight


def numbered(name: str, count: int) -> list[str]:
    """Hugging Face's names of what mlx-lm stacks under `name`, one for each of `count` experts."""
    return [name.replace(EXPERTS, f"mlp.experts.{expert}") for expert in range(count)]


def are_numbered(names: Iterable[str]) -> bool:
    """Whether a checkpoint with tensors of these names numbers its experts."""
    return any(".mlp.experts." in name for name in names)


def stored_shapes(config: ModelConfig, is_numbered: bool) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape of every parameter as it is in the files, experts numbered or stacked."""
    for name, shape in parameter_shapes(config):
        if is_numbered and f".{EXPERTS}." in name:
            yield from ((single, shape[1:]) for single in numbered(name, shape[0]))
        else:
            yield name, shape


def stack_experts(weights: dict[str, Weight], config: ModelConfig) -> None:
    """Replace the numbered matrices in `weights` by their stacks, [N, O, I]; others stay as they are.

    Raises UserError when the experts of one layer are packed in different ways.
    """
    for name, shape in parameter_shapes(config):
        if f".{EXPERTS}." in name and name not in weights:
            # Popped, so that no more than one parameter of one layer exists twice.
            weights[name] = _stacked(name, [weights.pop(single) for single in numbered(name, shape[0])])


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
    stack = mx.stack(arrays)
    mx.eval(stack)
    return stack
