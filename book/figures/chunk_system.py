"""Draws chunk-system.svg: the triangular system of three tokens, and a prompt in blocks."""

from typing import Final

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_ref.layers.chunkwise_delta import chunkwise_delta_rule

KEYS: Final = ((1.0, 0.0), (0.6, 0.8), (1.0, 0.0))
VALUES: Final = ((4.0, 2.0), (1.0, 1.0), (6.0, 0.0))
DECAYS: Final = (1.0, 0.5, 1.0)
BETAS: Final = (1.0, 1.0, 0.5)
_CELL, _TOP = 46, 78


def system() -> list[list[float]]:
    """I + A: what each token's correction takes from those before it."""
    rows = []
    for t, key in enumerate(KEYS):
        row = [0.0] * len(KEYS)
        row[t], left = 1.0, 1.0
        for i in range(t - 1, -1, -1):
            left *= DECAYS[i + 1]
            row[i] = BETAS[t] * left * sum(a * b for a, b in zip(key, KEYS[i], strict=True))
        rows.append(row)
    return rows


def corrections() -> list[list[float]]:
    """The rows u_t of the solution: what the rule adds to an empty state under each key."""
    state, found = mx.zeros((1, 1, 2, 2)), []
    for t, key in enumerate(KEYS):
        qkv = tuple(mx.array(each)[None, None, None] for each in (key, key, VALUES[t]))
        rates = (mx.array([[[rate]]]) for rate in (DECAYS[t], BETAS[t]))
        before = DECAYS[t] * state
        _, state = chunkwise_delta_rule((qkv[0], qkv[1], qkv[2]), *rates, state, 0)
        # A key of length 1 reads its own correction back.
        found.append([float(x) for x in (mx.array(key) @ (state - before)[0, 0]).tolist()])  # type: ignore[union-attr]
    return found


def draw() -> str:
    """The figure as SVG."""
    rows, found = system(), corrections()
    solved = mx.array(rows) @ mx.array(found)
    right = [[float(x) for x in row] for row in solved.tolist()]  # type: ignore[union-attr]
    drawing = Drawing(
        "The triangular system of three tokens: I + A times the corrections is what is asked for"
    )
    drawing.text(12, 22, "Three tokens of a block, empty state before", bold=True)
    for x, title in ((12, "I + A"), (200, "corrections U"), (350, "right side R")):
        drawing.text(x, 50, title, "grey", size=12)
    for x, numbers, role in ((12, rows, "blue"), (200, found, "orange"), (350, right, "green")):
        strengths = [[min(1.0, abs(number) / 4) for number in row] for row in numbers]
        labels = [[f"{number:.2f}".rstrip("0").rstrip(".") for number in row] for row in numbers]
        drawing.grid(x, _TOP - 14, strengths, role, cell=_CELL, labels=labels)
    drawing.text(168, _TOP + _CELL + 12, "×", size=18)
    drawing.text(316, _TOP + _CELL + 12, "=", size=18)
    return drawing.svg()
