"""Draws book/src/figures/shards.svg: a layer of the default model as two ranks hold it, to scale."""

from typing import Final

from book.figures.drawing import Drawing

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import QuantizedWeights, Weight
from tiny_llm_ref.models.parallel import shard_checkpoint

RANKS: Final = 2
_ROLES: Final = ("blue", "orange")
_ROWS: Final = (
    ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("mlp", ("gate_proj", "up_proj", "down_proj")),
)
_SCALE, _GAP = 0.3, 18


def shapes(name: str) -> list[tuple[int, int]]:
    """Outputs and inputs of one matrix of layer 0: of the whole model, then of each rank."""
    whole = load_checkpoint("default", dtype="float32")
    parts = [whole, *(shard_checkpoint(whole, rank, RANKS) for rank in range(RANKS))]
    return [_shape(part.weights[f"model.layers.0.{name}.weight"]) for part in parts]


def draw() -> str:
    """The figure as SVG."""
    d = Drawing("The seven matrices of a layer, each cut in two: by outputs, or by inputs before a sum.")
    d.text(12, 22, "One layer on two ranks (rows: outputs, columns: inputs)", bold=True)
    top = 44.0
    for module, names in _ROWS:
        x, bottom = 12.0, top
        for name in names:
            height = _matrix(d, x, top, name, shapes(f"{module}.{name}"))
            x += shapes(f"{module}.{name}")[0][1] * _SCALE + _GAP
            bottom = max(bottom, top + 34 + height)
        d.line([(x - 8, top + 50), (x + 14, top + 50)], "red", width=2, has_arrow=True)
        d.text(x + 20, top + 54, "sum", "red", bold=True)
        top = bottom + 18
    d.box(12, top, 12, 12, _ROLES[0])
    d.text(30, top + 11, "rank 0")
    d.box(92, top, 12, 12, _ROLES[1])
    d.text(110, top + 11, "rank 1")
    d.text(180, top + 11, "norms and router: whole on both", "grey", size=12)
    return d.svg()


def _matrix(d: Drawing, x: float, y: float, name: str, found: list[tuple[int, int]]) -> float:
    """Draw one matrix and its parts at (x, y); return the height."""
    (outputs, inputs), *parts = found
    d.text(x, y + 8, name.removesuffix("_proj"))
    d.text(x, y + 24, f"{outputs}×{inputs}", "grey", size=11)
    left, top = x, y + 34
    for role, (rows, columns) in zip(_ROLES, parts, strict=True):
        d.box(left, top, columns * _SCALE - 1, rows * _SCALE - 1, role, strength=0.8)
        if columns < inputs:
            left += columns * _SCALE
        else:
            top += rows * _SCALE
    return outputs * _SCALE


def _shape(w: Weight) -> tuple[int, int]:
    if isinstance(w, QuantizedWeights):
        return w.weight.shape[-2], w.weight.shape[-1] * 32 // w.bits
    return w.shape[-2], w.shape[-1]
