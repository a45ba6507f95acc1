"""Draws book/src/figures/step-budget.svg: how ten steps divide a budget of 16 tokens."""

from typing import Final

from book.figures.drawing import Drawing
from tests.helpers.scheduling import Job, drive

import tiny_llm_ref
from tiny_llm_lab.types import SchedulerConfig

BUDGET: Final = 16
_COLOURS: Final = {"a": "blue", "b": "green", "c": "orange", "d": "purple"}
_LEFT, _COLUMN, _UNIT, _BOTTOM = 64, 40, 11, 218


def jobs() -> list[Job]:
    """Two short prompts that decode when a prompt of 40 tokens and one of 20 arrive."""
    return [Job("a", 3, 10), Job("b", 5, 8), Job("c", 40, 3, step=2), Job("d", 20, 3, step=3)]


def plans() -> list[dict[str, int]]:
    """The tokens of each step by request id."""
    return drive(
        tiny_llm_ref, SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=8), jobs()
    ).tokens()


def draw() -> str:
    """The figure as SVG."""
    d = Drawing(
        "Ten steps of a scheduler as columns of up to 16 tokens: decodes take one each, chunks the rest."
    )
    d.text(12, 22, f"Tokens of each step, budget {BUDGET}", bold=True)
    top = _BOTTOM - BUDGET * _UNIT
    d.line([(_LEFT - 6, top), (_LEFT + 10 * _COLUMN, top)], "red", is_dashed=True)
    d.text(_LEFT - 10, top + 4, str(BUDGET), "red", anchor="end")
    for step, plan in enumerate(plans()):
        y = float(_BOTTOM)
        for name, count in plan.items():
            y -= count * _UNIT
            label = str(count) if count > 1 else ""
            d.box(_LEFT + step * _COLUMN, y, _COLUMN - 4, count * _UNIT - 1, _COLOURS[name], label=label)
        d.text(_LEFT + step * _COLUMN + 18, _BOTTOM + 18, str(step), "grey", anchor="middle")
        d.text(_LEFT + step * _COLUMN + 18, _BOTTOM + 36, str(sum(plan.values())), anchor="middle")
    d.line([(_LEFT - 6, _BOTTOM), (_LEFT + 10 * _COLUMN, _BOTTOM)])
    d.text(12, _BOTTOM + 18, "step", "grey")
    d.text(12, _BOTTOM + 36, "tokens")
    for i, job in enumerate(jobs()):
        left = 12 + 116 * i
        d.box(left, _BOTTOM + 52, 12, 12, _COLOURS[job.request_id])
        d.text(left + 18, _BOTTOM + 63, f"{job.request_id}: prompt {job.prompt}")
    d.text(
        12,
        _BOTTOM + 84,
        "A box without a number is a decode, 1 token. c arrives at step 2, d at step 3.",
        "grey",
        size=12,
    )
    return d.svg()
