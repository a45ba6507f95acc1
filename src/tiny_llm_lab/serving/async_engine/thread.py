"""An engine on a thread of this process."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.async_engine.built import BuiltEngine
from tiny_llm_lab.serving.async_engine.inbox import Inbox
from tiny_llm_lab.serving.async_engine.link import EventSink
from tiny_llm_lab.serving.async_engine.loop import Build, EngineLoop
from tiny_llm_lab.serving.async_engine.messages import Command, EngineEvent, Stop
from tiny_llm_lab.types import OnStep


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

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def stop(self) -> None:
        self.send(Stop())
        await asyncio.to_thread(self._thread.join)
        self._run_calls()

    async def tokenizer(self) -> CheckpointTokenizer:
        return self.built.tokenizer

    def _run(self) -> None:
        EngineLoop(self._built, self._tell, self._inbox).run()
        self._on_loop(self._sink.ended)

    def _built(self, on_step: OnStep) -> BuiltEngine:
        self.built = self._build(on_step)
        return self.built

    def _tell(self, events: Sequence[EngineEvent]) -> None:
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
