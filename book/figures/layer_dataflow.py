"""Draws what one layer of the default model does to a prompt: a shape on every arrow, and the residuals."""

from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab import load_checkpoint
from tiny_llm_ref.models.qwen import QwenModel

from .drawing import Drawing

PROMPT = "Mira keeps the brass compass in the attic."
HIGH = 26  # of a box
CENTRE, RESIDUAL = 200.0, 420.0


@dataclass(frozen=True)
class Shapes:
    """What flows through the first layer for PROMPT, as text."""

    stream: str
    query: str
    key: str
    heads: str
    inner: str


def shapes() -> Shapes:
    """Shapes of the reference's first layer, from its weights and from what it returns."""
    checkpoint = load_checkpoint("default", device="cpu")
    model, tokens = QwenModel(checkpoint.config, checkpoint.weights), checkpoint.tokenizer.encode(PROMPT)
    x = model.embed_tokens(mx.array([tokens]))
    assert model.layers[0](x, [0]).shape == model.layers[0].mixer(x, [0]).shape == x.shape
    batch, length, _ = x.shape
    dim = checkpoint.config.head_dim
    rows = {name: weight.shape[0] for name, weight in checkpoint.weights.items() if "layers.0." in name}
    heads = rows["model.layers.0.self_attn.q_proj.weight"] // dim
    groups = rows["model.layers.0.self_attn.k_proj.weight"] // dim
    inner = rows["model.layers.0.mlp.gate_proj.weight"]
    return Shapes(
        stream=_text(*x.shape),
        query=_text(batch, length, heads, dim),
        key=_text(batch, length, groups, dim),
        heads=_text(batch, heads, length, dim),
        inner=_text(batch, length, inner),
    )


def draw() -> str:
    """The figure as SVG."""
    flow = shapes()
    title = (
        "The data flow of a transformer layer: RMSNorm, attention and a sum with the layer's input, then "
        f"RMSNorm, MLP and a sum with that sum. Input and output have the same shape, {flow.stream}."
    )
    drawing = Drawing(title)
    drawing.text(CENTRE + 8, 22, f"x {flow.stream}", bold=True)
    _arrow(drawing, CENTRE, 10, 44)
    _attention(drawing, flow)
    _sum(drawing, 330, from_y=32)
    drawing.text(CENTRE + 18, 352, f"x + attention {flow.stream}")
    _arrow(drawing, CENTRE, 338, 374)
    _feed_forward(drawing, flow)
    _sum(drawing, 548, from_y=360)
    _arrow(drawing, CENTRE, 556, 584)
    drawing.text(CENTRE + 8, 580, f"to the next layer {flow.stream}", bold=True)
    return drawing.svg()


def _attention(drawing: Drawing, flow: Shapes) -> None:
    _box(drawing, CENTRE, 44, 180, "input_layernorm", "grey")
    columns = {"q": (80.0, flow.query), "k": (CENTRE, flow.key), "v": (320.0, flow.key)}
    for name, (x, shape) in columns.items():
        drawing.line([(CENTRE, 70), (CENTRE, 80), (x, 80), (x, 92)], has_arrow=True)
        _box(drawing, x, 92, 96, f"{name}_proj", "blue")
        drawing.text(x + 9, 132, shape, "grey", size=12)
        if name == "v":
            _arrow(drawing, x, 118, 222)
            continue
        _arrow(drawing, x, 118, 140)
        _box(drawing, x, 140, 96, f"{name}_norm", "grey")
        _arrow(drawing, x, 166, 182)
        _box(drawing, x, 182, 96, "RoPE", "purple")
        _arrow(drawing, x, 208, 222)
    _box(drawing, CENTRE, 222, 336, f"grouped causal attention {flow.heads}", "orange")
    _arrow(drawing, CENTRE, 248, 276)
    drawing.text(CENTRE + 8, 266, "heads joined again", "grey", size=12)
    _box(drawing, CENTRE, 276, 96, "o_proj", "blue")
    _arrow(drawing, CENTRE, 302, 322)


def _feed_forward(drawing: Drawing, flow: Shapes) -> None:
    _box(drawing, CENTRE, 374, 210, "post_attention_layernorm", "grey")
    for x, name in ((110.0, "gate_proj"), (290.0, "up_proj")):
        drawing.line([(CENTRE, 400), (CENTRE, 410), (x, 410), (x, 422)], has_arrow=True)
        _box(drawing, x, 422, 96, name, "blue")
        drawing.text(x + 9, 462, flow.inner, "grey", size=12)
        _arrow(drawing, x, 448, 470)
    _box(drawing, CENTRE, 470, 276, "silu(gate) · up", "green")
    _arrow(drawing, CENTRE, 496, 506)
    _box(drawing, CENTRE, 506, 96, "down_proj", "blue")
    _arrow(drawing, CENTRE, 532, 540)


def _sum(drawing: Drawing, y: float, *, from_y: float) -> None:
    """The residual: what stood at `from_y` is added at `y`."""
    drawing.line(
        [(CENTRE, from_y), (RESIDUAL, from_y), (RESIDUAL, y), (CENTRE + 9, y)],
        "red",
        width=2,
        has_arrow=True,
    )
    drawing.ring(CENTRE, y, 8, "red")
    drawing.text(CENTRE, y + 5, "+", "red", anchor="middle", bold=True)
    drawing.text(RESIDUAL - 4, (from_y + y) / 2, "residual", "red", anchor="end")


def _box(drawing: Drawing, x: float, y: float, width: float, label: str, role: str) -> None:
    drawing.box(x - width / 2, y, width, HIGH, role, strength=0.25, label=label)


def _arrow(drawing: Drawing, x: float, start: float, end: float) -> None:
    drawing.line([(x, start), (x, end)], has_arrow=True)


def _text(*shape: int) -> str:
    return f"[{', '.join(map(str, shape))}]"
