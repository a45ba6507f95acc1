"""Draws book/src/figures/paused-prefill.svg: a long prompt gives way to two short ones, and goes on.

Both runs are the reference's loop on a model that computes nothing: a clock counts the tokens that go through
it, so the figure is the same on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.types import Event, PrefillEvent, PrefillPolicy, Prompt, SamplingParams, TokenEvent, Wanted
from tiny_llm_ref.cache.kv_cache import TinyKvFullCache
from tiny_llm_ref.generate.batch_generator import batch_generate
from tiny_llm_ref.generate.prefill_scheduler import PrefillScheduler

LONG, CHUNK, SHORT = 48, 8, 4
NAMES = ("A, batch", "B, chat", "C, chat")
ARRIVALS = (0.0, 6.0, 22.0)
UNIT, LEFT, LANE, PANEL = 5.4, 82, 24, 148


@dataclass(frozen=True)
class Span:
    """A forward pass: the request it serves, the clock before and after it, and what it was."""

    idx: int
    start: float
    end: float
    is_chunk: bool


class Clock:
    """Counts tokens."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingModel:
    """Adds to the clock; stores one number for each token."""

    ops = None

    def __init__(self, clock: Clock) -> None:
        self.config = replace(load_checkpoint("default").config, num_hidden_layers=1)
        self._clock = clock

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        return [TinyKvFullCache()]

    def __call__(
        self, tokens: mx.array, offset: object, cache: list[TinyKvFullCache], wanted: Wanted
    ) -> mx.array:
        self._clock.now += tokens.size
        batch, length = tokens.shape
        cache[0].update_and_fetch(*[mx.zeros((batch, 1, length, 1))] * 2)
        return mx.zeros((batch, wanted.last, self.config.vocab_size))


def trace(policy: PrefillPolicy | None) -> tuple[list[Span], list[float]]:
    """What each pass did, and the first token of each request."""
    clock, events = Clock(), list[Event]()
    prompts = [
        Prompt(
            [1] * length, SamplingParams(max_tokens=tokens, ignore_eos=True), arrival_s, priority_class=kind
        )
        for length, tokens, arrival_s, kind in zip(
            (LONG, SHORT, SHORT), (2, 8, 8), ARRIVALS, ("batch", "interactive", "interactive"), strict=True
        )
    ]
    done = batch_generate(
        CountingModel(clock),
        load_checkpoint("default").tokenizer,
        prompts,
        prefill_step=CHUNK,
        prefill_policy=policy,
        on_event=events.append,
        async_scheduling=False,
        clock=clock,
    )
    firsts = [completion.timing.token_s[0] for completion in done]
    return _spans(events, firsts), firsts


def _spans(events: Sequence[Event], firsts: Sequence[float]) -> list[Span]:
    spans, before = [], 0.0
    for event in events:
        if isinstance(event, PrefillEvent):
            spans.append(Span(event.prompt_idx, before, event.time_s, True))
        elif isinstance(event, TokenEvent) and event.time_s > firsts[event.prompt_idx]:
            start = before if event.time_s > before else spans[-1].start  # a step serves all rows at once
            spans.append(Span(event.prompt_idx, start, event.time_s, False))
        else:
            continue
        before = max(before, event.time_s)
    return spans


def draw() -> str:
    """The figure as SVG."""
    plain, paused = trace(None), trace(PrefillScheduler(long_tokens=CHUNK, max_wait_s=1000))
    title = (
        f"Two timelines. First come, first served: B's first token comes {_wait(plain, 1):g} tokens after "
        f"its arrival, C's {_wait(plain, 2):g}. With pauses: {_wait(paused, 1):g} and {_wait(paused, 2):g}."
    )
    drawing = Drawing(title)
    for number, (said, run) in enumerate((("First come, first served", plain), ("A gives way", paused))):
        _panel(drawing, said, run, number * PANEL)
    y = 2 * PANEL + 6
    drawing.line([(LEFT, y), (LEFT + 70 * UNIT, y)], "grey", width=1)
    for at in range(0, 71, 10):
        drawing.text(LEFT + at * UNIT, y + 16, str(at), "grey", anchor="middle", size=12)
    drawing.text(LEFT, y + 33, "tokens computed since A arrived", "grey", size=12)
    return drawing.svg()


def _panel(drawing: Drawing, title: str, run: tuple[list[Span], list[float]], top: float) -> None:
    drawing.text(12, top + 22, title, bold=True)
    for idx, name in enumerate(NAMES):
        y = top + 34 + idx * LANE
        drawing.text(12, y + 15, name, size=12)
        arrival_x = LEFT + ARRIVALS[idx] * UNIT
        drawing.line([(arrival_x, y - 1), (arrival_x, y + LANE - 5)], "ink", width=1, is_dashed=True)
        for span in (each for each in run[0] if each.idx == idx):
            x, width = LEFT + span.start * UNIT, (span.end - span.start) * UNIT - 1
            drawing.box(x, y, width, LANE - 6, "orange" if span.is_chunk else "blue")
    said = [f"{name[0]} waits {_wait(run, idx):g}" for idx, name in enumerate(NAMES)]
    drawing.text(LEFT, top + 34 + 3 * LANE + 14, "first token: " + ", ".join(said), "grey", size=12)


def _wait(run: tuple[list[Span], list[float]], idx: int) -> float:
    return run[1][idx] - ARRIVALS[idx]
