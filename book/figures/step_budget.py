"""Draws book/src/figures/step-budget.svg: how steps divide a token budget."""

from typing import Final

from book.figures.drawing import Drawing
from book.figures.knobs import Knobs
from tests.helpers.scheduling import Job, Run, drive

import tiny_llm_ref
from tiny_llm_lab.types import SchedulerConfig

BUDGETS: Final = (8, 12, 16, 24, 32)
THRESHOLDS: Final = (0, 4, 8)
_COLOURS: Final = {"a": "blue", "b": "green", "c": "orange", "d": "purple"}
_LEFT, _COLUMN, _COLUMNS, _UNIT, _BOTTOM = 64, 29, 14, 6.5, 252


def jobs() -> list[Job]:
    """Two short prompts that decode when a prompt of 40 tokens and one of 20 arrive."""
    return [Job("a", 3, 10), Job("b", 5, 8), Job("c", 40, 3, step=2), Job("d", 20, 3, step=3)]


def schedule(budget: int, threshold: int) -> Run:
    """The reference's scheduler at work on the jobs."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget, max_num_seqs=8, long_prefill_token_threshold=threshold
    )
    return drive(tiny_llm_ref, config, jobs())


def _frame(budget: int, threshold: int) -> tuple[Drawing, str]:
    run = schedule(budget, threshold)
    d = Drawing("The steps of a scheduler as columns of tokens: decodes take one each, chunks the rest.")
    name = f", at most {threshold} of one prefill" if threshold else ""
    d.text(12, 22, f"Tokens of each step, budget {budget}{name}", bold=True)
    top, right = _BOTTOM - budget * _UNIT, _LEFT + _COLUMNS * _COLUMN
    d.line([(_LEFT - 6, top), (right, top)], "red", is_dashed=True)
    d.text(_LEFT - 10, top + 4, str(budget), "red", anchor="end")
    for step, plan in enumerate(run.tokens()):
        _column(d, step, plan)
    d.line([(_LEFT - 6, _BOTTOM), (right, _BOTTOM)])
    d.text(12, _BOTTOM + 18, "step", "grey")
    d.text(12, _BOTTOM + 36, "tokens")
    for i, job in enumerate(jobs()):
        left = 12 + 116 * i
        d.box(left, _BOTTOM + 52, 12, 12, _COLOURS[job.request_id])
        d.text(left + 18, _BOTTOM + 63, f"{job.request_id}: prompt {job.prompt}")
    key = "A box without a number is 1 token. c arrives at step 2, d at step 3."
    d.text(12, _BOTTOM + 84, key, "grey", size=12)
    return d, _sentence(run)


def _column(d: Drawing, step: int, plan: dict[str, int]) -> None:
    left, y = _LEFT + step * _COLUMN, float(_BOTTOM)
    for name, count in plan.items():
        y -= count * _UNIT
        label = str(count) if count > 1 else ""
        d.box(left, y, _COLUMN - 3, count * _UNIT - 1, _COLOURS[name], label=label)
    d.text(left + 13, _BOTTOM + 18, str(step), "grey", anchor="middle")
    d.text(left + 13, _BOTTOM + 36, str(sum(plan.values())), anchor="middle")


def _sentence(run: Run) -> str:
    longest = max(run.costs("a") + run.costs("b"))
    c, d = (run.jobs[name].first_token_step for name in "cd")
    return (
        f"The largest step with a decode of a or b has {longest} tokens. "
        f"c samples its first token in step {c}, d in step {d}. All are done after {len(run.plans)} steps."
    )


KNOBS: Final = Knobs(
    {"max_num_batched_tokens": BUDGETS, "long_prefill_token_threshold": THRESHOLDS}, (16, 0), _frame
)


def draw() -> str:
    """The figure as SVG."""
    return KNOBS.svg()
