"""Draws book/src/figures/packed-rows.svg: what the reference's engine gives its model in two steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from book.figures.drawing import Drawing
from tests.helpers.toy import ByteTokenizer, random_tokens, toy_model

import tiny_llm_ref
from tiny_llm_lab.types import EngineOptions, SamplingParams, SchedulerConfig, StepPlan, StepStats, Wanted

PROMPTS: Final = {"a": 3, "b": 2, "c": 9}
BUDGET: Final = 8
_COLOURS: Final = {"a": "blue", "b": "green", "c": "orange"}
_LEFT, _CELL, _PANEL = 108, 44, 132


@dataclass
class Recorder:
    """A model that keeps the positions and the selected rows of every forward pass."""

    model: Any
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: Any, positions: list[int], layers: Any, *, wanted: Wanted) -> Any:
        self.calls.append((list(positions), list(wanted.rows or ())))
        return self.model(tokens, positions, layers, wanted=wanted)


def two_steps() -> list[tuple[StepPlan, list[int], list[int]]]:
    """Plan, positions and sampled rows of the first two steps."""
    model = Recorder(toy_model(tiny_llm_ref))
    plans: list[StepPlan] = []

    def keep(plan: StepPlan, stats: StepStats) -> None:
        plans.append(plan)

    config = SchedulerConfig(max_num_batched_tokens=BUDGET, max_num_seqs=4)
    options = EngineOptions(on_step=keep, async_scheduling=False)
    engine = tiny_llm_ref.Engine(model, ByteTokenizer(), config, options)
    for name, length in PROMPTS.items():
        prompt = random_tokens(length, length).tolist()
        engine.add(name, prompt, SamplingParams(max_tokens=2, ignore_eos=True))
    for _ in range(2):
        engine.step()
    engine.release()
    return [(plan, *call) for plan, call in zip(plans, model.calls, strict=True)]


def draw() -> str:
    """The figure as SVG."""
    d = Drawing("Two steps as rows of tokens: three requests share one forward pass, few rows are sampled.")
    for i, (plan, positions, rows) in enumerate(two_steps()):
        _panel(d, f"step {i}: {dict(plan.num_scheduled_tokens)}", plan, (positions, rows), 10 + i * _PANEL)
    note = "Only rows with an arrow go through the output head; all rows store keys and values."
    d.text(12, 10 + 2 * _PANEL + 8, note, "grey", size=12)
    return d.svg()


def _panel(
    d: Drawing, title: str, plan: StepPlan, call: tuple[Sequence[int], Sequence[int]], top: float
) -> None:
    positions, rows = call
    owners = "".join(name * count for name, count in plan.num_scheduled_tokens.items())
    d.text(12, top + 14, title, bold=True)
    for label, y in (("row", 38), ("request", 62), ("position", 88), ("sampled", 116)):
        d.text(12, top + y, label, "grey")
    for row, (owner, position) in enumerate(zip(owners, positions, strict=True)):
        x = _LEFT + row * _CELL
        d.text(x + _CELL / 2 - 2, top + 38, str(row), "grey", anchor="middle")
        d.box(x, top + 46, _CELL - 4, 22, _COLOURS[owner], label=owner)
        d.text(x + _CELL / 2 - 2, top + 88, str(position), anchor="middle")
        if row in rows:
            d.line([(x + _CELL / 2 - 2, top + 96), (x + _CELL / 2 - 2, top + 118)], "red", has_arrow=True)
