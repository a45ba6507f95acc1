"""A toy model as the server serves it, with what listens to its engine."""

from collections.abc import Sequence
from typing import Any

from tests.helpers.fake_engine import built, on_thread
from tests.helpers.serving import make_engine
from tests.helpers.toy import QWEN3, toy_model

from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.async_engine import messages
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineListener
from tiny_llm_lab.serving.async_engine.loop import BuiltEngine
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.server.api import ServedModel
from tiny_llm_lab.types import OnStep, SamplingParams, SchedulerConfig, StepPlan, StepStats
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts

FACTS = messages.EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1)


def report_of(plan: StepPlan, held: Any = (), disk: DiskCounts | None = None) -> messages.StepReport:
    """Of a step that took a second."""
    counts = messages.CacheCounts(), messages.DraftCounts(), disk or DiskCounts()
    return messages.StepReport(plan, StepStats(1.0, 2.0, 3, 4, 5, 6), 256, held, *counts)


def toy_engine(config: SchedulerConfig, listeners: Sequence[EngineListener], wrap: Any = None) -> AsyncEngine:
    """An engine on its thread; `wrap` makes another model of the toy, there, as MLX binds arrays to it."""
    llm = load_serving("ref")

    def make(on_step: OnStep) -> BuiltEngine:
        model = toy_model(llm) if wrap is None else wrap(toy_model(llm))
        engine = make_engine(llm, model, config, on_step=on_step)
        return built(engine, facts_of(engine, QWEN3))

    return AsyncEngine(on_thread(make), listeners)


async def start_toy(config: SchedulerConfig, listeners: Sequence[EngineListener], **more: Any) -> ServedModel:
    """A served model without a tokenizer: its requests are token ids."""
    engine = toy_engine(config, listeners)
    await engine.start()
    nothing: Any = None
    return ServedModel(names=("toy", "alias"), engine=engine, tokenizer=nothing, **more)


class Stepped:
    """An engine of a toy model that is stepped by hand, and tells a listener what it does."""

    def __init__(self, listener: Any, config: SchedulerConfig, model: Any = None, **options: Any) -> None:
        llm = load_serving("ref")
        self.listener, self.clock = listener, options.get("clock", lambda: 0.0)
        model = model or toy_model(llm)
        self.engine = make_engine(llm, model, config, on_step=self._stepped, **options)
        self.reports = Reports(self.engine)
        listener.started(facts_of(self.engine, model.config))

    def _stepped(self, plan: StepPlan, stats: StepStats) -> None:
        self.listener.stepped(self.reports.step(plan, stats))

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, ignore_eos: bool = True) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
        self.engine.add(name, prompt, sampling)
        added = AddedRequest(name, len(prompt), sampling, self.clock())
        self.listener.added(added, self.reports.queues())

    def step(self) -> None:
        if outputs := self.engine.step():
            self.listener.produced(outputs)

    def run(self) -> None:
        while self.engine.has_requests:
            self.step()

    def abort(self, name: str) -> None:
        assert self.engine.abort(name)
        self.listener.aborted(name, self.reports.queues())
