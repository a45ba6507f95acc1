"""An engine in a process of its own, or in one for each of its ranks."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer, load_tokenizer
from tiny_llm_lab.serving.async_engine.link import EventSink
from tiny_llm_lab.serving.async_engine.messages import Command, Configured, EngineEvent, Ready
from tiny_llm_lab.serving.async_engine.process_group import ProcessGroup
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import SchedulerConfig


class EngineProcess:
    """An `EngineLink` to a process, which can be started again."""

    can_restart = True

    def __init__(self, settings: ModelSettings) -> None:
        """Nothing runs before `start`."""
        self._settings = settings
        self._group: ProcessGroup | None = None
        self._tokenizer: Future[CheckpointTokenizer] | None = None

    async def start(self, sink: EventSink) -> None:
        """Raises UserError for a model that cannot be found; other errors come as events."""
        if self._tokenizer is None:
            folder = await asyncio.to_thread(find_folder, self._settings.model)
            self._tokenizer = ThreadPoolExecutor(1, "tokenizer").submit(load_tokenizer, folder)
        self._sink = sink
        self._group = await ProcessGroup.start(self._settings, self._receive, sink.ended)

    def send(self, command: Command) -> None:
        if self._group is not None:
            self._group.send(command)

    async def stop(self) -> None:
        if self._group is not None:
            await self._group.stop()

    async def tokenizer(self) -> CheckpointTokenizer:
        assert self._tokenizer is not None
        return await asyncio.wrap_future(self._tokenizer)

    def _receive(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            match event:
                case Ready(facts):
                    self._keep(facts.config)
                case Configured(_, config):
                    # Want of memory may have lowered another field for a time.
                    chunked, budget = config.enable_chunked_prefill, config.max_num_batched_tokens
                    kept = self._settings.engine.config
                    self._keep(replace(kept, enable_chunked_prefill=chunked, max_num_batched_tokens=budget))
        self._sink.receive(events)

    def _keep(self, config: SchedulerConfig) -> None:
        """What was measured or changed holds for the next process too."""
        self._settings = replace(
            self._settings,
            engine=replace(self._settings.engine, config=config),
            max_model_len=config.max_model_len,
            fits_steps=False,
        )
