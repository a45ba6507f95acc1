"""Draws delta-memory.svg: three tokens write to a memory, with the delta rule and by adding up."""

from typing import Final

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_ref.layers.delta_rule import gated_delta_rule

KEYS: Final = ((1.0, 0.0), (0.0, 1.0), (1.0, 0.0))
VALUES: Final = ((4.0, 2.0), (1.0, 1.0), (6.0, 0.0))
QUERIES: Final = ((1.0, 0.0), (1.0, 1.0), (1.0, 1.0))
DECAYS: Final = (1.0, 0.5, 1.0)
BETAS: Final = (1.0, 1.0, 0.5)
_COLUMNS: Final = {
    "key": 84,
    "value": 136,
    "decay, β": 186,
    "delta rule": 254,
    "output": 330,
    "added up": 392,
}
_TOP, _ROW, _CELL, _STRONGEST = 56, 74, 30, 10.0


def states() -> tuple[list[mx.array], list[mx.array], list[mx.array]]:
    """After each token: the state [2, 2], the output [2], and the sum of k v^T."""
    state, total = mx.zeros((1, 1, 2, 2)), mx.zeros((2, 2))
    after, outputs, sums = [], [], []
    for key, value, query, decay, beta in zip(KEYS, VALUES, QUERIES, DECAYS, BETAS, strict=True):
        qkv = tuple(mx.array(each)[None, None, None] for each in (query, key, value))
        rates = (mx.array([[[rate]]]) for rate in (decay, beta))
        out, state = gated_delta_rule((qkv[0], qkv[1], qkv[2]), *rates, state, 1)
        total = total + mx.outer(mx.array(key), mx.array(value))
        after.append(state[0, 0])
        outputs.append(out[0, 0, 0])
        sums.append(total)
    return after, outputs, sums


def draw() -> str:
    """The figure as SVG."""
    after, outputs, sums = states()
    drawing = Drawing("Three tokens write to a memory of two keys: with the delta rule, and by adding up")
    drawing.text(12, 22, "What a memory of 2 × 2 numbers holds", bold=True)
    for title, x in _COLUMNS.items():
        drawing.text(x, 44, title, "grey", size=12)
    for token in range(len(KEYS)):
        top = _TOP + token * _ROW
        drawing.text(12, top + 34, f"token {token + 1}")
        for name, pair in (("key", KEYS[token]), ("value", VALUES[token])):
            drawing.text(_COLUMNS[name], top + 34, _said(pair), size=12)
        drawing.text(_COLUMNS["decay, β"], top + 34, f"{DECAYS[token]:g}, {BETAS[token]:g}", size=12)
        _matrix(drawing, _COLUMNS["delta rule"], top, after[token], "blue")
        drawing.text(_COLUMNS["output"], top + 34, _said(_numbers(outputs[token])), size=12)
        _matrix(drawing, _COLUMNS["added up"], top, sums[token], "orange")
    return drawing.svg()


def _matrix(drawing: Drawing, x: float, y: float, matrix: mx.array, role: str) -> None:
    rows = [_numbers(row) for row in matrix]
    labels = [[f"{number:g}" for number in row] for row in rows]
    strengths = [[number / _STRONGEST for number in row] for row in rows]
    drawing.grid(x, y, strengths, role, cell=_CELL, labels=labels)


def _numbers(row: mx.array) -> list[float]:
    return [float(number) for number in row.astype(mx.float32).tolist()]  # type: ignore[union-attr]


def _said(pair: tuple[float, ...] | list[float]) -> str:
    return f"({pair[0]:g}, {pair[1]:g})"
