"""A loaded model with a running engine: all you need to send it requests."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer, load_tokenizer
from tiny_llm_lab.serving.async_engine import messages
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import EngineLink, EngineListener, EventSink
from tiny_llm_lab.serving.async_engine.loop import Build, BuiltEngine, EngineLoop, built_from
from tiny_llm_lab.serving.async_engine.process_group import ProcessGroup
from tiny_llm_lab.serving.async_engine.texts import ENGINE_TEXT, EngineText, ReaderText
from tiny_llm_lab.serving.async_engine.wire import Inbox
from tiny_llm_lab.serving.building import require_length
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import OnStep, SamplingParams, SchedulerConfig


class EngineThread:
    """An `EngineLink` to a thread, which also builds the engine, as MLX binds arrays to their thread."""

    can_restart = False

    def __init__(self, build: Build) -> None:
        """Nothing runs before `start`."""
        self._build, self._inbox = build, Inbox()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._calls: deque[Callable[[], None]] = deque()  # for the event loop
        self._is_wake_due = False

    async def start(self, sink: EventSink) -> None:
        self._sink, self._loop = sink, asyncio.get_running_loop()
        self._thread.start()

    def send(self, command: messages.Command) -> None:
        self._inbox.put(command)

    async def stop(self) -> None:
        self.send(messages.Stop())
        await asyncio.to_thread(self._thread.join)
        self._run_calls()

    async def tokenizer(self) -> CheckpointTokenizer:
        return self.built.tokenizer

    def text_of(self, sampling: SamplingParams) -> EngineText:
        return ENGINE_TEXT

    def _run(self) -> None:
        EngineLoop(self._built, self._tell, self._inbox).run()
        self._on_loop(self._sink.ended)

    def _built(self, on_step: OnStep) -> BuiltEngine:
        self.built = self._build(on_step)
        return self.built

    def _tell(self, events: Sequence[messages.EngineEvent]) -> None:
        self._on_loop(lambda: self._sink.receive(events))

    def _on_loop(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        # We wake the loop once a step. A closed loop has no readers.
        if not self._is_wake_due and not self._loop.is_closed():
            self._is_wake_due = True
            self._loop.call_soon_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        self._is_wake_due = False  # first, because whatever is added after this wakes the loop again
        while self._calls:
            self._calls.popleft()()


class EngineProcess:
    """An `EngineLink` to a process, which can be started again."""

    can_restart = True

    def __init__(self, settings: ModelSettings) -> None:
        """Nothing runs before `start`."""
        self._settings = settings
        self._group: ProcessGroup | None = None
        self._tokenizer: Future[CheckpointTokenizer] | None = None

    async def start(self, sink: EventSink) -> None:
        """Raises UserError for a model that is not found or too short; other errors come as events."""
        if self._tokenizer is None:
            await asyncio.to_thread(require_length, self._settings)
            folder = await asyncio.to_thread(find_folder, self._settings.model)
            self._tokenizer = ThreadPoolExecutor(1, "tokenizer").submit(load_tokenizer, folder)
        self._sink = sink
        self._group = await ProcessGroup.start(self._settings, self._receive, sink.ended)

    def send(self, command: messages.Command) -> None:
        if self._group is not None:
            self._group.send(command)

    async def stop(self) -> None:
        if self._group is not None:
            await self._group.stop()

    async def tokenizer(self) -> CheckpointTokenizer:
        assert self._tokenizer is not None
        return await asyncio.wrap_future(self._tokenizer)

    def text_of(self, sampling: SamplingParams) -> EngineText:
        """The engine makes that of a request that it must end at a stop string."""
        if self._tokenizer is None or sampling.stop or sampling.pooling:
            return ENGINE_TEXT
        return ReaderText(self._tokenizer.result().detokenizer)

    def _receive(self, events: Sequence[messages.EngineEvent]) -> None:
        for event in events:
            match event:
                case messages.Ready(facts):
                    self._keep(facts.config)
                case messages.Configured(_, config):
                    # Want of memory may have lowered another field for a time.
                    chunked, budget = config.enable_chunked_prefill, config.max_num_batched_tokens
                    kept = self._settings.engine.config
                    self._keep(replace(kept, enable_chunked_prefill=chunked, max_num_batched_tokens=budget))
        self._sink.receive(events)

    def _keep(self, config: SchedulerConfig) -> None:
        """What was measured or changed holds for the next process too, but for the length: less may fit."""
        self._settings = replace(
            self._settings,
            engine=replace(self._settings.engine, config=config),
            fits_steps=False,
        )


_QUICK: Final = 2000  # characters that are encoded in less than a millisecond


@dataclass(frozen=True, kw_only=True)
class RunningModel:
    """A running engine, and what belongs to its model."""

    engine: AsyncEngine
    tokenizer: CheckpointTokenizer
    # Threads of their own, so that nothing else waits for long prompts.
    encoders: Executor = field(default_factory=lambda: ThreadPoolExecutor(2, "encode"))

    @property
    def facts(self) -> messages.EngineFacts:
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
