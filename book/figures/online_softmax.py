"""Draws book/src/figures/online-softmax.svg: one row of attention over three blocks of keys.

The outputs after every block are the reference's `flash_attention` over the keys so far; maximum and sum
follow the paper (Dao 2023, algorithm 1), and the figure refuses to be drawn when the two disagree.
"""

import math
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_ref.layers.flash_attention import flash_attention

from .drawing import Drawing

SCORES = ((1.0, 3.0), (2.0, 5.0), (4.0, 0.0))
VALUES = ((10.0, 20.0), (30.0, 40.0), (50.0, 60.0))
_LEFT, _PANEL = 16, 152


@dataclass(frozen=True)
class State:
    """After a block: maximum, sum, output before the division, and what the old ones were multiplied by."""

    peak: float
    total: float
    out: float
    shrink: float


def draw() -> str:
    """The figure as SVG."""
    states = states_after()
    drawing = Drawing(
        "One row of scores in three blocks of two. The maximum m goes from 3 to 5 and stays, the sum l is "
        f"{', '.join(f'{state.total:.2f}' for state in states)}; whenever m rises, l and o are first "
        "multiplied by exp(old m - new m)."
    )
    for i, state in enumerate(states):
        left = _LEFT + i * _PANEL
        drawing.text(left, 24, f"block {i}", bold=True)
        for j, (score, value) in enumerate(zip(SCORES[i], VALUES[i], strict=True)):
            weight = math.exp(score - state.peak)
            drawing.box(left + 66 * j, 36, 62, 28, "blue", strength=weight, label=f"s = {score:g}")
            drawing.text(left + 66 * j + 31, 80, f"v = {value:g}", "grey", anchor="middle", size=12)
            drawing.text(left + 66 * j + 31, 96, f"p = {weight:.2f}", anchor="middle", size=12)
        _state(drawing, left, state, is_first=i == 0)
        if i + 1 < len(states):
            drawing.line([(left + 134, 50), (left + 148, 50)], "grey", has_arrow=True)
    last = states[-1]
    drawing.text(_LEFT, 224, f"answer: o / l = {last.out / last.total:.2f}", bold=True)
    return drawing.svg()


def states_after() -> list[State]:
    """The state of the row after every block. Raises ValueError when the reference's output differs."""
    state, states, done = State(-math.inf, 0.0, 0.0, 0.0), [], 0
    for scores, values in zip(SCORES, VALUES, strict=True):
        peak = max(state.peak, *scores)
        shrink = math.exp(state.peak - peak)
        weights = [math.exp(score - peak) for score in scores]
        total = state.total * shrink + sum(weights)
        added = sum(weight * value for weight, value in zip(weights, values, strict=True))
        state = State(peak, total, state.out * shrink + added, shrink)
        states.append(state)
        done += len(scores)
        if abs(state.out / state.total - _answer(done)) > 1e-3:
            raise ValueError("the blocks do not give what flash_attention gives")
    return states


def _answer(num_keys: int) -> float:
    """What the reference makes of the first keys: a query of 1, keys that are the scores."""
    keys = [score for block in SCORES for score in block][:num_keys]
    values = [value for block in VALUES for value in block][:num_keys]
    shape = (1, 1, num_keys, 1)
    out = flash_attention(
        mx.ones((1, 1, 1, 1)), mx.array(keys).reshape(shape), mx.array(values).reshape(shape), scale=1.0
    )
    return float(out.item())


def _state(drawing: Drawing, left: float, state: State, *, is_first: bool) -> None:
    factor = "nothing before" if is_first else f"old × {state.shrink:.2f}"
    lines = (
        (factor, "grey" if is_first or state.shrink == 1 else "orange"),
        (f"m = {state.peak:g}", "ink"),
        (f"l = {state.total:.2f}", "ink"),
        (f"o = {state.out:.2f}", "ink"),
    )
    drawing.box(left, 108, 132, 92, "faint", strength=0.5)
    for i, (text, role) in enumerate(lines):
        drawing.text(left + 10, 128 + 20 * i, text, role)
