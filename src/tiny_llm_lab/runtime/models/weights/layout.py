"""How a checkpoint writes down the same parameters: Hugging Face's ways, and that of MLX's conversions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import mlx.core as mx

from tiny_llm_lab.runtime.models.weights.parameters import DELTA_NET, EXPERTS, ParameterShape
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight

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


# Of Qwen3-Next: what belongs to a key head is one behind the other.
FUSED_QKVZ: Final = f"{DELTA_NET}.in_proj_qkvz.weight"
FUSED_BA: Final = f"{DELTA_NET}.in_proj_ba.weight"
CONV: Final = f"{DELTA_NET}.conv1d.weight"
_NUMBERED = re.compile(r"\.mlp\.experts\.\d+\.")


@dataclass(frozen=True)
class Layout:
    """Where the parameters of a checkpoint are, as the names and shapes of its tensors say."""

    experts: Literal["stacked", "numbered", "fused"] = "stacked"
    has_fused_inputs: bool = False  # of gated delta nets
    # A hybrid's: conv1d is [C, 1, K], and norms multiply by 1 + weight. None if nothing says which.
    is_original: bool | None = False

    @classmethod
    def of(cls, tensors: Mapping[str, TensorInfo]) -> "Layout":
        """That of a checkpoint with these tensors."""
        convs = [info.shape for name, info in tensors.items() if name.endswith(CONV)]
        is_fused = any(name.endswith(FUSED_GATE_UP) for name in tensors)
        return cls(
            experts="fused" if is_fused else "numbered" if any(map(_NUMBERED.search, tensors)) else "stacked",
            has_fused_inputs=any(name.endswith(FUSED_QKVZ) for name in tensors),
            # Its shape decides: other tensors, such as those of mtp, come with either kind of norms.
            is_original=any(shape[-1] != 1 for shape in convs) if convs else _as_its_writer(tensors),
        )


def _as_its_writer(tensors: Mapping[str, TensorInfo]) -> bool | None:
    """As files without conv1d say: transformers and mlx-lm name themselves in theirs."""
    formats = {info.format for info in tensors.values()}
    return True if formats == {"pt"} else False if formats == {"mlx"} else None


def stored_shapes(
    parameters: Iterable[tuple[str, ParameterShape]], config: ModelConfig, layout: Layout
) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape of some parameters of a model as they are in the files."""
    for name, shape in parameters:
        layer, _, _ = name.partition(f"{EXPERTS}.")
        if layer != name:
            yield from _experts(layer, name, shape, layout)
        elif layout.has_fused_inputs and f".{DELTA_NET}.in_proj_" in name:
            yield from _fused_inputs(name, shape, config)
        elif name.endswith(CONV):
            channels, taps = shape
            yield name, (channels, 1, taps) if layout.is_original else (channels, taps, 1)
        else:
            yield name, shape


def _experts(
    layer: str, name: str, shape: ParameterShape, layout: Layout
) -> Iterator[tuple[str, ParameterShape]]:
    count, rows, columns = shape
    if layout.experts == "numbered":
        yield from ((single, (rows, columns)) for single in numbered(name, count))
    elif layout.experts == "stacked":
        yield name, shape
    elif name.endswith("gate_proj.weight"):
        yield f"{layer}{FUSED_GATE_UP}", (count, 2 * rows, columns)
    elif name.endswith("down_proj.weight"):
        yield f"{layer}{FUSED_DOWN}", shape


def _fused_inputs(
    name: str, shape: ParameterShape, config: ModelConfig
) -> Iterator[tuple[str, ParameterShape]]:
    assert config.hybrid is not None
    sizes, (rows, hidden) = config.hybrid.delta_net, shape
    layer, _, part = name.partition(f"{DELTA_NET}.in_proj_")
    if part == "qkv.weight":
        yield f"{layer}{FUSED_QKVZ}", (rows + sizes.value_dim, hidden)
    elif part == "b.weight":
        yield f"{layer}{FUSED_BA}", (2 * rows, hidden)
