"""Draws how temperature, top-k, top-p and min-p cut a distribution of the default model."""

from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import Wanted
from tiny_llm_ref import build_model
from tiny_llm_ref.generate.sampler import truncated_logits

from .drawing import Drawing

PROMPT = "Once upon a time there was a small cat named Carmen. Carmen lived"
SHOWN = 6
CUTS: dict[str, dict[str, float]] = {
    "top_k = 3": {"top_k": 3},
    "top_p = 0.7": {"top_p": 0.7},
    "min_p = 0.4": {"min_p": 0.4},
}
TEMPERATURES = (0.5, 1.0, 2.0)
COLOURS = ("blue", "orange", "green", "purple", "red", "grey")
LEFT, BAR, UNIT, ROW = 76.0, 76.0, 400.0, 25.0
COLUMN, COLUMN_WIDTH = 222.0, 82.0


@dataclass(frozen=True)
class Cuts:
    """The likeliest words, their chances at each temperature, and which of them each cut keeps."""

    words: list[str]
    chances: dict[float, list[float]]
    num_others: int
    kept: dict[str, list[bool]]


def cuts() -> Cuts:
    """What the reference makes of the model's scores behind PROMPT."""
    checkpoint = load_checkpoint("default", device="cpu")
    tokens = mx.array([checkpoint.tokenizer.encode(PROMPT)])
    logits = build_model(checkpoint)(tokens, wanted=Wanted(last=1))[0, -1]
    best = mx.argsort(-logits)[:SHOWN]
    chances = {}
    for temperature in TEMPERATURES:
        chances[temperature] = mx.softmax(truncated_logits(logits, temperature))[best].tolist()
    kept = {}
    for name, settings in CUTS.items():
        scores = truncated_logits(logits, 1.0, **settings)[best].tolist()
        kept[name] = [score > float("-inf") for score in scores]
    words = [checkpoint.tokenizer.decode([token]).strip() for token in best.tolist()]
    return Cuts(words, chances, logits.shape[0] - SHOWN, kept)


def draw() -> str:
    """The figure as SVG."""
    found = cuts()
    drawing = Drawing(
        "Six likeliest words with their probabilities and which of them top-k 3, top-p 0.7, min-p 0.4 keep; "
        "below, the shares of these words and of all others at three temperatures."
    )
    drawing.text(16, 24, "“… Carmen lived”", bold=True)
    for i, name in enumerate(CUTS):
        drawing.text(COLUMN + (i + 0.5) * COLUMN_WIDTH, 24, name, anchor="middle", size=12)
    for i, word in enumerate(found.words):
        _word(drawing, found, i, word, 38 + i * ROW)
    top = 38 + SHOWN * ROW + 28
    drawing.text(16, top, "temperature", bold=True)
    drawing.text(
        464, top, f"at the right: all {found.num_others:,} other words", "grey", anchor="end", size=12
    )
    for i, (temperature, chances) in enumerate(found.chances.items()):
        _mixture(drawing, temperature, chances, found, top + 12 + i * 34)
    return drawing.svg()


def _word(drawing: Drawing, found: Cuts, i: int, word: str, y: float) -> None:
    chance = found.chances[1.0][i]
    drawing.text(16, y + 14, word)
    drawing.box(BAR, y, round(chance * UNIT, 1), ROW - 5, COLOURS[i], strength=0.5)
    drawing.text(BAR + 4, y + 14.5, f"{chance:.2f}")
    for column, kept in enumerate(found.kept.values()):
        x = COLUMN + (column + 0.5) * COLUMN_WIDTH
        if kept[i]:
            drawing.dot(x, y + 10, 6)
        else:
            drawing.line([(x - 5, y + 10), (x + 5, y + 10)], "faint", width=2)


def _mixture(drawing: Drawing, temperature: float, chances: list[float], found: Cuts, y: float) -> None:
    drawing.text(16, y + 17, f"{temperature:g}")
    x, wide = LEFT - 30, 418.0
    for word, chance, colour in zip(found.words, chances, COLOURS, strict=True):
        label = word if chance * wide > 8 * len(word) else ""
        drawing.box(x, y, round(chance * wide, 1), 26, colour, strength=0.5, label=label)
        x = round(x + chance * wide, 1)
    rest = 1 - sum(chances)
    if rest > 0.02:
        drawing.box(x, y, round(rest * wide, 1), 26, "faint", label=f"{rest:.2f}")
