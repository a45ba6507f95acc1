"""Draws where the parameters of the default model and of Qwen3-0.6B are."""

import json
import math
import tempfile
from pathlib import Path

from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import ModelConfig

from .drawing import Drawing

PARTS = {"embedding, also the head": "orange", "attention": "blue", "MLP": "green", "norms": "red"}
LEFT, WIDE, HIGH = 16.0, 448.0, 34.0


def counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of each of PARTS, summed over all layers."""
    found = dict.fromkeys(PARTS, 0)
    for name, shape in parameter_shapes(config):
        found[_part(name)] += math.prod(shape)
    return found


def configs() -> dict[str, ModelConfig]:
    """The default model and Qwen3-0.6B, whose weights are not needed."""
    default, _ = read_config(find_folder("default") / "config.json")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config_json(parse_shape("qwen3-0.6b"))), encoding="utf-8")
        real, _ = read_config(path)
    return {"default model": default, "Qwen3-0.6B": real}


def draw() -> str:
    """The figure as SVG."""
    drawing = Drawing(
        "Two bars of parameters by part. In both models the MLPs hold the most parameters, attention and the "
        "embedding less, and the norms almost none."
    )
    for i, (name, config) in enumerate(configs().items()):
        _bar(drawing, 20 + i * 100, f"{name}: {config.num_hidden_layers} layers", counts(config))
    for i, (part, role) in enumerate(PARTS.items()):
        x, y = LEFT + (i % 2) * 230, 222 + (i // 2) * 22
        drawing.box(x, y - 11, 12, 12, role, strength=0.6)
        drawing.text(x + 20, y, part)
    return drawing.svg()


def _bar(drawing: Drawing, y: float, title: str, found: dict[str, int]) -> None:
    total = sum(found.values())
    drawing.text(LEFT, y + 12, f"{title}, {_millions(total)} parameters", bold=True)
    x = LEFT
    for part, role in PARTS.items():
        share = found[part] / total
        drawing.box(x, y + 22, max(1.0, round(share * WIDE, 1)), HIGH, role, strength=0.6)
        if share > 0.1:
            middle = x + share * WIDE / 2
            drawing.text(round(middle, 1), y + 44, f"{100 * share:.0f} %", anchor="middle")
            drawing.text(round(middle, 1), y + 72, _millions(found[part]), "grey", anchor="middle", size=12)
        x = round(x + share * WIDE, 1)


def _part(name: str) -> str:
    if "norm" in name:
        return "norms"
    if "embed_tokens" in name:
        return "embedding, also the head"
    return "attention" if ".self_attn." in name else "MLP"


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} million"
