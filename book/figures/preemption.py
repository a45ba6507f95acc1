"""Draws book/src/figures/preemption.svg: two answers outgrow five blocks, in a real schedule."""

from typing import Any, Final

from book.figures.drawing import Drawing
from tests.helpers.scheduling import Job, drive

import tiny_llm_ref
from tiny_llm_lab.types import SchedulerConfig

NUM_BLOCKS: Final = 5
BLOCK_SIZE: Final = 4
_COLOURS: Final = {"a": "blue", "b": "orange"}
_LEFT, _COLUMN, _BLOCK = 64, 27, 18


def run() -> tuple[list[dict[str, int]], list[dict[str, int]], int]:
    """Tokens and blocks held after planning, of each step by request id; and the step that preempts b."""
    schedulers: list[Any] = []
    before: list[dict[str, int]] = []

    def look(step: int, scheduler: Any) -> None:
        schedulers.append(scheduler)
        before.append({each.request_id: len(each.block_ids) for each in scheduler.running})

    done = drive(
        tiny_llm_ref,
        SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8),
        [Job("a", 6, 9), Job("b", 6, 9)],
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        before_step=look,
    )
    preempts = next(step for step, plan in enumerate(done.plans) if plan.preempted)
    return done.tokens(), before, preempts


def draw() -> str:
    """The figure as SVG."""
    tokens, blocks, preempts = run()
    d = Drawing(
        "Two sequences in five blocks: at step 3 b loses its blocks, and computes 9 tokens again at step 9."
    )
    d.text(12, 22, "Tokens computed in each step", bold=True)
    for row, name in enumerate("ab"):
        y = 34 + row * 30
        d.text(12, y + 17, name, _COLOURS[name], bold=True)
        for step, plan in enumerate(tokens):
            if name in plan:
                label, strength = str(plan[name]), 1.0 if plan[name] > 1 else 0.35
                d.box(
                    _LEFT + step * _COLUMN, y, _COLUMN - 3, 24, _COLOURS[name], label=label, strength=strength
                )
    x = _LEFT + preempts * _COLUMN + 10
    d.text(x, 80, "preempted: waits, no blocks", "red", size=12)
    d.text(12, 122, f"Blocks held before each step, of {NUM_BLOCKS}", bold=True)
    bottom = 134 + NUM_BLOCKS * _BLOCK
    for step, held in enumerate(blocks):
        names = "".join(name * held.get(name, 0) for name in "ab").ljust(NUM_BLOCKS)
        for i, name in enumerate(names):
            left, y = _LEFT + step * _COLUMN, bottom - (i + 1) * _BLOCK
            if name == " ":
                d.box(left, y, _COLUMN - 3, _BLOCK - 2, "faint", is_outline=True)
            else:
                d.box(left, y, _COLUMN - 3, _BLOCK - 2, _COLOURS[name])
        d.text(_LEFT + step * _COLUMN + 12, bottom + 18, str(step), "grey", anchor="middle")
    d.text(12, bottom + 18, "step", "grey")
    return d.svg()
