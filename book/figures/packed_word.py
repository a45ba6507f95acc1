"""Draws book/src/figures/packed-word.svg: a word of eight weights, decoded by the reference."""

import mlx.core as mx

from tiny_llm_ref.layers.quantize import dequantize_weights

from .drawing import Drawing

WORD, BITS, GROUP_SIZE = 0x5B2F80E4, 4, 32
SCALE, BIAS = 0.25, -2.0
_COUNT = 32 // BITS
_LEFT, _CELL = 74, 49


def draw() -> str:
    """The figure as SVG."""
    fields = [WORD >> BITS * i & 2**BITS - 1 for i in range(_COUNT)]
    weights = decoded()
    drawing = Drawing(
        f"The word {WORD:#x} holds eight weights of 4 bits. The lowest four bits are weight 0. Each field q "
        f"becomes {SCALE:g} q - {-BIAS:g}."
    )
    drawing.text(16, 24, f"The word {WORD:#010x}: its last digit is weight 0", bold=True)
    lanes = (
        ("bits", [f"{BITS * (i + 1) - 1}–{BITS * i}" for i in range(_COUNT)]),
        ("field q", [str(field) for field in fields]),
        ("weight", [f"{weight:g}" for weight in weights]),
    )
    for lane, (name, values) in enumerate(lanes):
        top = 42 + 34 * lane
        drawing.text(16, top + 18, name, "grey", size=12)
        for i, value in enumerate(values):
            # Weight 0 stands on the right, as in the number.
            left = _LEFT + (_COUNT - 1 - i) * _CELL
            if lane:
                strength = fields[i] / 20 + 0.1 if lane == 1 else 0.15
                drawing.box(left, top, _CELL - 4, 28, "blue" if lane == 1 else "green", strength=strength)
            drawing.text(left + _CELL / 2 - 2, top + 18, value, anchor="middle", size=12)
    drawing.text(
        _LEFT, 42 + 3 * 34 + 14, f"weight = {SCALE:g} · q + ({BIAS:g}) for this group", "grey", size=12
    )
    return drawing.svg()


def decoded() -> list[float]:
    """The first eight weights of a row whose first word is WORD."""
    words = mx.array([[WORD, *[0] * (GROUP_SIZE * BITS // 32 - 1)]], mx.uint32)
    row = dequantize_weights(words, mx.array([[SCALE]]), mx.array([[BIAS]]), GROUP_SIZE, BITS)
    return [float(weight) for weight in row[0, :_COUNT].tolist()]
