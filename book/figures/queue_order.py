"""Draws book/src/figures/queue-order.svg: three policies, planned by the reference."""

from typing import Final

from book.figures.drawing import Drawing
from tests.helpers.scheduling import Job, Run, drive

import tiny_llm_ref
from tiny_llm_lab.types import Policy, SchedulerConfig

BUDGET: Final = 16
_POLICIES: Final[tuple[Policy, ...]] = ("fcfs", "fair", "priority")
_LEFT, _COLUMN, _ROW, _PANEL = 92, 36, 21, 154


def jobs() -> list[Job]:
    """A long prompt, then three short ones of other priorities; e is of class batch."""
    return [
        Job("a", 48, 3, priority=2),
        Job("b", 12, 3, step=1, priority=1),
        Job("c", 20, 3, step=1, priority=0),
        Job("d", 8, 3, step=2, priority=1),
        Job("e", 30, 3, step=0, priority_class="batch"),
    ]


def run(policy: Policy) -> Run:
    """What the reference's scheduler makes of the jobs."""
    config = SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=8, policy=policy)
    return drive(tiny_llm_ref, config, jobs())


def draw() -> str:
    """The figure as SVG."""
    d = Drawing("Tokens of five requests in ten steps under fcfs, fair and priority: their order differs.")
    for i, policy in enumerate(_POLICIES):
        _panel(d, policy, run(policy), 8 + i * _PANEL)
    bottom = 8 + len(_POLICIES) * _PANEL
    d.text(
        12,
        bottom + 6,
        "Red frame: the first token of the answer is sampled. Rows: name, prompt, priority.",
        "grey",
        size=12,
    )
    return d.svg()


def _panel(d: Drawing, policy: str, done: Run, top: float) -> None:
    d.text(12, top + 16, f"policy {policy}, budget {BUDGET}", bold=True)
    for row, job in enumerate(jobs()):
        y = top + 24 + row * _ROW
        kind = "batch" if job.priority_class == "batch" else f"p{job.priority}"
        d.text(12, y + 14, f"{job.request_id}  {job.prompt}  {kind}", "grey", size=12)
        for step, plan in enumerate(done.tokens()):
            _cell(d, step, y, job, plan.get(job.request_id, 0))
        first = done.jobs[job.request_id].first_token_step
        if first is not None:
            _frame(d, _LEFT + first * _COLUMN, y)
    y = top + 24 + len(jobs()) * _ROW
    for step in range(len(done.plans)):
        d.text(_LEFT + step * _COLUMN + 16, y + 10, str(step), "grey", anchor="middle", size=11)


def _cell(d: Drawing, step: int, y: float, job: Job, count: int) -> None:
    at = (_LEFT + step * _COLUMN, y, _COLUMN - 3, _ROW - 3)
    d.box(*at, "faint", strength=0.3)
    if count:
        role = "purple" if job.priority_class == "batch" else "blue"
        d.box(*at, role, strength=0.25 + 0.75 * min(1, count / BUDGET), label=str(count))


def _frame(d: Drawing, x: float, y: float) -> None:
    right, bottom = x + _COLUMN - 3, y + _ROW - 3
    d.line([(x, y), (right, y), (right, bottom), (x, bottom), (x, y)], "red", width=2)
