"""A toy model as the server serves it, with what listens to its engine."""

from collections.abc import Sequence
from typing import Any

from tests.helpers.fake_engine import built, on_thread
from tests.helpers.serving import make_engine
from tests.helpers.toy import QWEN3, toy_model

from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import EngineListener
from tiny_llm_lab.serving.async_engine.loop import BuiltEngine
from tiny_llm_lab.serving.async_engine.reports import facts_of
from tiny_llm_lab.serving.server.api import ServedModel
from tiny_llm_lab.types import OnStep, SchedulerConfig


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
