"""The engine for asyncio: `async for output in engine.generate(...)`, next to other requests."""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, TypeVar

from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineListener
from tiny_llm_lab.serving.async_engine.stream import RequestStream
from tiny_llm_lab.serving.async_engine.thread import EngineStoppedError, EngineThread
from tiny_llm_lab.types import (
    EngineOutput,
    LogitsProcessor,
    OnStep,
    PriorityClass,
    SamplingParams,
    SchedulerConfig,
    UserError,
)
from tiny_llm_lab.types.scheduling.serving import Engine

T = TypeVar("T")
# A small model's step is shorter than this, and a write for each token of each stream would take longer
# than the step. So readers get several tokens at a time; tokens of slower steps go out at once.
MIN_INTERVAL_S: Final = 0.002


class AsyncEngine:
    """Requests of one event loop on an engine that runs on a thread of its own."""

    def __init__(
        self,
        make_engine: Callable[[OnStep], Engine],
        listeners: Sequence[EngineListener] = (),
        idle: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`make_engine` builds the engine, on its thread; nothing runs before `start`.

        `idle` as in `EngineThread`.
        """
        self._streams: dict[str, RequestStream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = EngineThread(make_engine, self, listeners, idle)
        self._numbers = itertools.count()
        self._is_closing = False
        self._waiting_calls: deque[Callable[[], None]] = deque()  # calls for the loop
        self._is_wake_due = False
        self._last_call_s = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Build the engine; raises what `make_engine` raises."""
        self._loop = asyncio.get_running_loop()
        await asyncio.wrap_future(self._thread.start())
        await self.run(self._thread.started)

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken."""
        return self._thread.is_alive and not self._is_closing

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    async def add(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
        priority: int = 0,
        priority_class: PriorityClass = "interactive",
        arrival_s: float | None = None,
        processors: Sequence[LogitsProcessor] = (),
        changed: asyncio.Event | None = None,
    ) -> RequestStream:
        """Queue a request of token ids; returns its stream once the engine has accepted it.

        `request_id` None makes one up, `arrival_s` None is now, on time.perf_counter. `changed` as in
        `RequestStream`. A stream that is left before its end must be given to `abort`. Raises UserError for a
        request that can never be served or an id in use, and EngineStoppedError when the engine takes none.
        """
        if not self.is_ready:
            raise EngineStoppedError("the engine is stopping and takes no more requests")
        name = f"request-{next(self._numbers)}" if request_id is None else request_id
        arrived = time.perf_counter() if arrival_s is None else arrival_s

        def command(engine: Engine) -> None:
            engine.add(
                name,
                prompt,
                sampling,
                priority=priority,
                priority_class=priority_class,
                arrival_s=arrived,
                processors=processors,
            )
            self._thread.added(AddedRequest(name, len(prompt), sampling, arrived))

        return await self._started(name, command, changed)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> AsyncGenerator[EngineOutput, None]:
        """Answer a prompt: yields what each step brings, the last output with its completion.

        A loop that is left early ends the request, within one step. Otherwise as `add`.
        """
        stream = await self.add(prompt, sampling, request_id=request_id, processors=processors)
        try:
            async for output in stream:
                yield output
        finally:
            self.abort(stream)

    def abort(self, stream: RequestStream) -> None:
        """End a request within one step; one that has ended is fine. Does not wait."""
        if self._forget(stream.request_id) is not None and not stream.is_done:
            self._thread.abort(stream.request_id)

    async def _started(
        self, name: str, command: Callable[[Engine], None], changed: asyncio.Event | None
    ) -> RequestStream:
        if name in self._streams:
            raise UserError(f"request id {name!r} is in use: choose another")
        stream = self._streams[name] = RequestStream(name, changed)  # before the first output can come
        self._idle.clear()
        try:
            await self.run(command)
        except BaseException:
            # If we are cancelled here the command may still run, so we send an abort after it.
            self._forget(name)
            self._thread.abort(name)
            raise
        return stream

    async def run(self, command: Callable[[Engine], T]) -> T:
        """What `command` returns on the engine's thread, between two steps."""
        return await asyncio.wrap_future(self._thread.submit(command))

    async def reconfigure(self, config: SchedulerConfig) -> None:
        """Schedule by `config`, starting with the next step. Raises UserError if it cannot."""

        def command(engine: Engine) -> None:
            engine.core.reconfigure(config)
            self._thread.started(engine)

        await self.run(command)

    async def stop(self, drain_s: float = 0.0) -> int:
        """Refuse new requests, serve the others up to `drain_s` seconds and end the rest; how many."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), drain_s)
        num_lost = len(self._streams)
        await asyncio.to_thread(self._thread.stop)
        return num_lost

    # What the engine's thread calls.

    def deliver(self, outputs: Sequence[EngineOutput]) -> None:
        self._on_loop(lambda: self._put(outputs))

    def fail(self, request_ids: Sequence[str], error: BaseException) -> None:
        self._on_loop(lambda: self._fail(request_ids, error))

    def _on_loop(self, call: Callable[[], None]) -> None:
        self._waiting_calls.append(call)
        # We wake the loop once a step. A closed loop has no readers.
        if not self._is_wake_due and self._loop is not None and not self._loop.is_closed():
            self._is_wake_due = True
            self._loop.call_soon_threadsafe(self._wake, self._loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        rest_s = self._last_call_s + MIN_INTERVAL_S - loop.time()
        if rest_s > 0:
            loop.call_later(rest_s, self._run_calls, loop)
        else:
            self._run_calls(loop)

    def _run_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_wake_due = False  # first, because whatever is added after this wakes the loop again
        while self._waiting_calls:
            self._waiting_calls.popleft()()
        self._last_call_s = loop.time()

    def _put(self, outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            if (stream := self._streams.get(output.request_id)) is not None:
                stream.put(output)
                if stream.is_done:
                    self._forget(output.request_id)

    def _fail(self, request_ids: Sequence[str], error: BaseException) -> None:
        for request_id in request_ids:
            if (stream := self._forget(request_id)) is not None:
                stream.fail(error)

    def _forget(self, request_id: str) -> RequestStream | None:
        stream = self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()
        return stream
