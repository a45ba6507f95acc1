"""Draws gated-mlp.svg: one token on its way through norm and gated MLP, the first numbers of each vector.

The token is the last of a short text, the model is the default model.
"""

from typing import Final

import mlx.core as mx
from book.figures.attention_scores import layer_weights
from book.figures.drawing import Drawing

from tiny_llm_lab import load_checkpoint
from tiny_llm_ref.layers.basics import linear, silu
from tiny_llm_ref.models.qwen import QwenModel

TEXT: Final = "Mira keeps the brass compass"
LAYER, FULL = 3, 2.0  # FULL is drawn in full colour
SHOWN, CELL, LEFT, ROW = 20, 17, 128, 27


def vectors() -> dict[str, list[float]]:
    """The vectors of the last token, from the residual stream to what the MLP returns."""
    checkpoint = load_checkpoint("default")
    config, tokens = checkpoint.config, checkpoint.tokenizer.encode(TEXT)
    model = QwenModel(config, checkpoint.weights)
    x = model.embed_tokens(mx.array([tokens]))
    for before in model.layers[:LAYER]:
        x = before(x, [0])
    own = layer_weights(checkpoint.weights, LAYER)
    block = model.layers[LAYER]
    x = x + block.mixer(block.input_layernorm(x), [0])
    normed = block.post_attention_layernorm(x)
    gate, up = (linear(normed, own[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    steps = {
        "x": x,
        "RMSNorm(x)": normed,
        "gate": gate,
        "silu(gate)": silu(gate),
        "up": up,
        "silu(gate) · up": silu(gate) * up,
        "down": linear(silu(gate) * up, own["mlp.down_proj.weight"]),
    }
    return {name: step[0, -1].tolist() for name, step in steps.items()}


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing("Seven vectors of one token in the gated MLP, as rows of shaded cells")
    drawing.text(12, 24, f'"{TEXT.split()[-1]}" in layer {LAYER}: the first {SHOWN} numbers', bold=True)
    y = 40
    for name, vector in vectors().items():
        if name in ("gate", "down"):
            y += 12
        drawing.text(LEFT - 8, y + 15, f"{name}", anchor="end")
        shown = [round(number, 2) for number in vector[:SHOWN]]
        for i, number in enumerate(shown):
            at = (LEFT + i * CELL, y, CELL - 2, ROW - 7)
            drawing.box(*at, "faint", strength=0.4)
            if number:
                drawing.box(*at, "blue" if number > 0 else "orange", strength=min(abs(number) / FULL, 1))
        y += ROW
    drawing.box(LEFT, y + 8, CELL - 2, ROW - 7, "blue")
    drawing.text(LEFT + 22, y + 23, f"{FULL:g} or more")
    drawing.box(LEFT + 120, y + 8, CELL - 2, ROW - 7, "orange")
    drawing.text(LEFT + 142, y + 23, f"−{FULL:g} or less")
    drawing.box(LEFT + 240, y + 8, CELL - 2, ROW - 7, "faint", strength=0.4)
    drawing.text(LEFT + 262, y + 23, "0")
    return drawing.svg()
