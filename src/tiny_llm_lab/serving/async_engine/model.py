"""A loaded model with a running engine: all you need to send it requests."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.async_engine.built import built_from
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.link import EngineLink
from tiny_llm_lab.serving.async_engine.listener import EngineListener
from tiny_llm_lab.serving.async_engine.messages import EngineFacts
from tiny_llm_lab.serving.async_engine.process import EngineProcess
from tiny_llm_lab.serving.async_engine.thread import EngineThread
from tiny_llm_lab.serving.options.engine_settings import ModelSettings

_QUICK: Final = 2000  # characters that are encoded in less than a millisecond


@dataclass(frozen=True, kw_only=True)
class RunningModel:
    """A running engine, and what belongs to its model."""

    engine: AsyncEngine
    tokenizer: CheckpointTokenizer
    # Threads of their own, so that nothing else waits for long prompts.
    encoders: Executor = field(default_factory=lambda: ThreadPoolExecutor(2, "encode"))

    @property
    def facts(self) -> EngineFacts:
        """Of the engine."""
        return self.engine.facts

    @property
    def max_num_tokens(self) -> int:
        """The most tokens of prompt and answer together."""
        return min(self.facts.config.max_model_len, self.facts.num_blocks * self.facts.block_size)

    async def encode(self, text: str) -> list[int]:
        """The tokens of `text`; long ones are computed on a thread. UserError for invalid Unicode."""
        if len(text) <= _QUICK:
            return self.tokenizer.encode(text)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.encoders, self.tokenizer.encode, text)


def on_thread(settings: ModelSettings) -> EngineLink:
    """An engine in this process, for a program that has other work for its event loop."""
    return EngineThread(partial(built_from, settings))


def in_process(settings: ModelSettings) -> EngineLink:
    """An engine in a process of its own, which shares Python's lock with nobody and can be started again."""
    return EngineProcess(settings)


async def run_model(link: EngineLink, listeners: Sequence[EngineListener] = ()) -> RunningModel:
    """Load the model and start its engine. Raises UserError for a model or settings that cannot be served."""
    engine = AsyncEngine(link, listeners)
    await engine.start()
    return RunningModel(engine=engine, tokenizer=await link.tokenizer())
