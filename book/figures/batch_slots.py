"""Draws book/src/figures/batch-slots.svg: who has which row of the batch, in static and continuous batching.

Both runs go through the reference's decode phase. They differ in one rule: when a waiting request may join.
"""

from collections.abc import Callable

import mlx.core as mx

from tiny_llm_lab import SamplingParams, load_checkpoint
from tiny_llm_lab.types import Arrival, BatchSettings, Checkpoint, Model, Prompt, Wanted
from tiny_llm_ref.generate.batch_generator import BatchGenerator
from tiny_llm_ref.generate.request import Request
from tiny_llm_ref.models.build import build_model

from .drawing import Drawing

ROWS = 3
ANSWERS = {"A": 5, "B": 9, "C": 3, "D": 4, "E": 6, "F": 3, "G": 7}  # tokens; the first comes with the prefill
_COLOURS = ("blue", "orange", "green", "purple", "red")
_LEFT, _CELL, _LANE, _PANEL = 56, 22, 26, 142

History = list[list[str]]  # for each decode step the request in every row


def draw() -> str:
    """The figure as SVG."""
    checkpoint = load_checkpoint("default")
    model = build_model(checkpoint)
    static = served(model, checkpoint, may_join=lambda active: active == 0)
    continuous = served(model, checkpoint, may_join=lambda active: active < ROWS)
    drawing = Drawing(
        f"Rows of a batch over decode steps. Static batching: {len(static)} steps, with rows that stand "
        f"empty until the longest answer ends. Continuous batching: {len(continuous)} steps, a row that "
        "becomes free is taken at once."
    )
    _panel(drawing, 0, "Static: the next batch waits for the longest answer", static)
    _panel(drawing, _PANEL, "Continuous: a waiting request takes the free row", continuous)
    return drawing.svg()


def served(model: Model, checkpoint: Checkpoint, may_join: Callable[[int], bool]) -> History:
    """Who was in which row in every decode step; `may_join` is told how many requests are active."""
    settings = BatchSettings(batch_size=ROWS, async_scheduling=False)
    run = BatchGenerator(model, checkpoint.tokenizer, [], settings)
    waiting, names, history = list(ANSWERS), list(ANSWERS), []
    while waiting or run.decode_requests:
        if may_join(len(run.decode_requests)):
            while waiting and len(run.decode_requests) < ROWS:
                _join(run, model, checkpoint, names.index(waiting.pop(0)))
        history.append([names[request.prompt_idx] for request in run.decode_requests])
        run.handle_decode_phase()
    run.release()
    return history


def _join(run: BatchGenerator, model: Model, checkpoint: Checkpoint, index: int) -> None:
    """Compute a prompt in one piece and give it a row: what day 2.7 does in chunks."""
    sampling = SamplingParams(max_tokens=list(ANSWERS.values())[index], ignore_eos=True)
    request = Request(model, checkpoint.tokenizer, Arrival(index, Prompt("Who are you?", sampling), 0.0))
    logits = model(mx.array([request.prefill_tokens]), 0, request.kv_cache, wanted=Wanted(last=1))
    request.offset = len(request.prefill_tokens)
    request.answer.accept(int(request.sample(logits[:, -1], request.offset).item()))
    for batch_layer, layer in zip(run.kv_cache, request.kv_cache, strict=True):
        batch_layer.add_request(layer)
    run.decode_requests.append(request)


def _panel(drawing: Drawing, top: float, title: str, history: History) -> None:
    drawing.text(16, top + 24, title, bold=True)
    for row in range(ROWS):
        drawing.text(16, top + 36 + row * _LANE + 17, f"row {row}", "grey", size=12)
    for step, names in enumerate(history):
        for row in range(ROWS):
            left, y = _LEFT + step * _CELL, top + 36 + row * _LANE
            if row < len(names):
                _cell(drawing, left, y, names[row])
            else:
                drawing.box(left, y, _CELL - 2, _LANE - 4, "faint", strength=0.4)
    used = sum(map(len, history))
    said = f"{len(history)} decode steps, {used} of {ROWS * len(history)} places used"
    drawing.text(_LEFT, top + 36 + ROWS * _LANE + 14, said, "grey", size=12)


def _cell(drawing: Drawing, left: float, y: float, name: str) -> None:
    times, colour = divmod(list(ANSWERS).index(name), len(_COLOURS))
    strength = 0.4 if times else 0.9
    drawing.box(left, y, _CELL - 2, _LANE - 4, _COLOURS[colour], strength=strength, label=name)
