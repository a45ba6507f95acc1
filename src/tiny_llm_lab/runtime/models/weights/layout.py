"""How a checkpoint writes down the same parameters: Hugging Face's ways, and that of MLX's conversions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tiny_llm_lab.runtime.models.weights.experts import FUSED_DOWN, FUSED_GATE_UP, numbered
from tiny_llm_lab.runtime.models.weights.parameters import DELTA_NET, EXPERTS, ParameterShape
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo
from tiny_llm_lab.types import ModelConfig

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
