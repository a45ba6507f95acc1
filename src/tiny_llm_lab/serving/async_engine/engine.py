"""The engine for asyncio: `async for output in engine.generate(...)`, next to other requests."""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Final

from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.async_engine import messages
from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineLink, EngineListener
from tiny_llm_lab.serving.async_engine.texts import ENGINE_TEXT, EngineText
from tiny_llm_lab.types import Clock, EngineOutput, SamplingParams, SchedulerConfig, UserError

MAX_WAITING: Final = 64


class RequestStream:
    """An asynchronous iterator over the outputs of one request, for one reader.

    A slow reader gets several steps at once. Never more than the answer waits, in MAX_WAITING
    outputs at most.
    """

    def __init__(
        self,
        request_id: str,
        changed: asyncio.Event | None = None,
        text: EngineText = ENGINE_TEXT,
        num_prompt_tokens: int = 0,
    ) -> None:
        """Sets request_id, is_done = False: whether the engine has no more to bring, and num_unread: how many
        tokens of the prompt may have to be computed, 0 after the first output.

        `changed` is set whenever something has come; streams with one reader may share it. `text` makes the
        text of what the reader takes.
        """
        self.request_id = request_id
        self.is_done = False
        self.num_unread = num_prompt_tokens
        self._waiting: list[EngineOutput] = []
        self._error: BaseException | None = None
        self._changed, self._text = changed or asyncio.Event(), text

    @property
    def num_waiting(self) -> int:
        """Outputs that the reader has not taken yet."""
        return len(self._waiting)

    def put(self, output: EngineOutput) -> None:
        """Add what a step brought; on the reader's event loop."""
        if len(self._waiting) >= MAX_WAITING:  # an object costs more than its contents
            self._waiting = [merged(self._waiting)]
        self._waiting.append(output)
        self.num_unread = 0
        self.is_done = output.completion is not None
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; on the reader's event loop."""
        self._error, self.is_done = error, True
        self._changed.set()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> EngineOutput:
        """Everything since the last call, as one output. Raises the error that ended the stream."""
        while (output := self.take()) is None:
            if self.is_done:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return output

    def take(self) -> EngineOutput | None:
        """What came since the last call; None when nothing did. Raises the error that ended the stream."""
        outputs, self._waiting = self._waiting, []
        if not outputs and self._error is not None:
            raise self._error
        return self._text.filled(merged(outputs)) if outputs else None


def merged(outputs: Sequence[EngineOutput]) -> EngineOutput:
    """One output in place of several of a request, oldest first."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    return EngineOutput(
        last.request_id,
        tuple(token for each in outputs for token in each.token_ids),
        "".join(each.text for each in outputs),
        last.completion,
        tuple(score for each in outputs for score in each.logprobs),
        tuple(event for each in outputs for event in each.events),
        last.num_cached_tokens,
        tuple(score for each in outputs for score in each.prompt_logprobs),
    )


class Replies:
    """Futures by the numbers of commands. Every command has a reply, also if nobody waits for it any more."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[None]] = {}

    def expect(self, number: int) -> asyncio.Future[None]:
        """A future that is done when the command is, or has the error that refused it."""
        reply = self._open[number] = asyncio.get_running_loop().create_future()
        return reply

    def settle(self, number: int, error: BaseException | None = None) -> None:
        """The reply has come."""
        reply = self._open.pop(number)
        if reply.done():  # cancelled
            return
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(None)

    def fail(self, error: BaseException) -> None:
        """No more replies come."""
        for number in list(self._open):
            self.settle(number, error)


_LOG: Final = logging.getLogger("tiny_llm.engine")
_FIRST_PAUSE_S: Final = 0.5  # before an engine is started again; doubled while it keeps dying
_LONGEST_PAUSE_S: Final = 30.0
_LOST_PAUSE_S: Final = 60.0  # between two starts after the device has failed
# An engine hangs if a step takes longer than this and so much per prompt token, double for a long prompt.
_SILENCE_S: Final = 60.0
_SLOW_TOKEN_S: Final = 0.1
_LONG_PROMPT: Final = 2**14
_RESTART_S: Final = 5  # after which a client may ask again


class AsyncEngine:
    """Requests of one event loop on an engine that runs elsewhere."""

    def __init__(
        self, link: EngineLink, listeners: Sequence[EngineListener] = (), clock: Clock = time.monotonic
    ) -> None:
        """Nothing runs before `start`, which sets facts and config. Sets memory_note = "" and picture_bytes
        = 0: bytes of the pictures of requests that have not ended, which `Answers` counts.
        """
        self.facts: messages.EngineFacts
        self.config: SchedulerConfig  # now
        self.memory_note, self.picture_bytes = "", 0
        self._link, self._listeners = link, tuple(listeners)
        self._streams: dict[str, RequestStream] = {}
        self._replies = Replies()
        self._adding: dict[int, Sequence[messages.NewRequest]] = {}  # by the number of their command
        self._numbers = itertools.count(1)
        self._names = itertools.count()
        self._is_up = self._is_closing = self._is_silent = False
        self._clock, self._heard_s = clock, -math.inf  # when the engine last said something
        self._restart: asyncio.Task[None] | None = None
        self._lost_s = -math.inf  # when it was last started again for that reason
        self._lost: messages.DeviceLostError | None = None  # why the engine is not there
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Build the engine; raises what building it raises."""
        first = self._replies.expect(0)
        await self._link.start(self)
        try:
            await first
        except BaseException:
            await self._link.stop()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken."""
        return self._is_up and not self._is_closing and not self.note_silence()

    def require_ready(self) -> None:
        """Raise EngineStoppedError if no request would be taken."""
        if self._is_closing:
            raise messages.EngineStoppedError("the server is stopping and takes no more requests")
        if self._lost is not None:
            raise messages.EngineStoppedError(f"{self._lost}: try again in a minute", self._lost.retry_s)
        if self._restart is not None:
            raise messages.EngineStoppedError(
                "the engine is starting again: try again in a few seconds", _RESTART_S
            )
        if not self._is_up:
            raise messages.EngineStoppedError("the engine has stopped and takes no more requests")
        if self.note_silence():
            silent = f"the engine has said nothing for {self._silent_s:.0f} s: try again later"
            raise messages.EngineStoppedError(silent, 10)

    def note_silence(self) -> bool:
        """Whether the engine owes a step and has said nothing for too long; the log says so once."""
        if self._owes_step and not self._is_silent and self._silent_s > self._longest_step_s:
            self._is_silent = True
            _LOG.error("the engine hangs: it has said nothing for %.0f s", self._silent_s)
        return self._is_silent

    @property
    def _silent_s(self) -> float:
        return self._clock() - self._heard_s

    @property
    def _longest_step_s(self) -> float:
        """A step may have a whole prompt, which takes minutes on a slow machine."""
        num_unread = sum(each.num_unread for each in self._streams.values())
        num_tokens = min(num_unread, self.config.max_num_batched_tokens)
        return _SILENCE_S + _SLOW_TOKEN_S * num_tokens * (1 + num_unread / _LONG_PROMPT)

    @property
    def _owes_step(self) -> bool:
        """Whether it has requests besides those whose forms are being compiled."""
        adding = itertools.chain.from_iterable(self._adding.values())
        trying = {each.request_id for each in adding if each.sampling.structured_outputs}
        return any(name not in trying for name in self._streams)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    async def add(
        self, requests: Sequence[messages.NewRequest], changed: asyncio.Event | None = None
    ) -> list[RequestStream]:
        """Queue all of `requests` or none; returns their streams once the engine has accepted them.

        `changed` as in `RequestStream`. A stream that is left before its end must be given to `abort`. Raises
        UserError for a request that can never be served or an id in use, and EngineStoppedError when the
        engine takes none.
        """
        self.require_ready()
        names = tuple(each.request_id for each in requests)
        if len({*names}) < len(names) or self._streams.keys() & names:
            name = next(each for each in names if each in self._streams or names.count(each) > 1)
            raise UserError(f"request id {name!r} is in use: choose another")
        if not self._owes_step:
            self._heard_s = self._clock()
        both = [(each, self._link.text_of(each.sampling)) for each in requests]
        asked = tuple(replace(each, sampling=text.asked(each.sampling)) for each, text in both)
        streams = [RequestStream(each.request_id, changed, text, len(each.prompt)) for each, text in both]
        self._streams.update(zip(names, streams, strict=True))  # before the first output can come
        self._idle.clear()
        number = next(self._numbers)
        self._adding[number] = requests
        try:
            await self._ask(messages.Add(number, asked))
        except BaseException:
            # If we are cancelled here the command may still run, so we send an abort after it.
            self.abort(*streams)
            raise
        return streams

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        request_id: str | None = None,
        pictures: tuple[Picture, ...] = (),
    ) -> AsyncGenerator[EngineOutput, None]:
        """Answer a prompt with its pictures: yields what each step brings, the last with its completion.

        `request_id` None makes one up. A loop that is left early ends the request, within one step. Raises as
        `add`.
        """
        name = f"request-{next(self._names)}" if request_id is None else request_id
        new = messages.NewRequest(name, prompt, sampling, arrival_s=time.perf_counter(), pictures=pictures)
        [stream] = await self.add([new])
        try:
            async for output in stream:
                yield output
        finally:
            self.abort(stream)

    def abort(self, *streams: RequestStream) -> None:
        """End requests within one step; those that have ended are fine. Does not wait."""
        names = [each.request_id for each in streams if self._forget(each.request_id) and not each.is_done]
        if names:
            self._link.send(messages.Abort(tuple(names)))

    async def reconfigure(self, enable_chunked_prefill: bool, max_num_batched_tokens: int) -> SchedulerConfig:
        """Schedule by these, starting with the next step. Raises UserError if the engine cannot."""
        self.require_ready()
        await self._ask(
            messages.Reconfigure(next(self._numbers), enable_chunked_prefill, max_num_batched_tokens)
        )
        return self.config

    async def stop(self, drain_s: float = 0.0) -> int:
        """Refuse new requests, serve the others up to `drain_s` seconds and end the rest; how many."""
        self._is_closing = True
        if self._restart is not None:
            self._restart.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), drain_s)
        num_lost = len(self._streams)
        await self._link.stop()
        return num_lost

    async def _ask(self, command: messages.Add | messages.Reconfigure) -> None:
        reply = self._replies.expect(command.number)
        self._link.send(command)
        await reply

    # What the link calls.

    def receive(self, events: Sequence[messages.EngineEvent]) -> None:
        self._heard_s, self._is_silent = self._clock(), False
        for event in events:
            self._receive(event)

    def _receive(self, event: messages.EngineEvent) -> None:
        match event:
            case messages.Produced(outputs):
                self._put(outputs)
                self._tell(methodcaller("produced", outputs))
            case messages.Stepped(report):
                self._tell(methodcaller("stepped", report))
            case messages.Added(number, queues, names):
                for each in (new for new in self._adding.pop(number) if new.request_id in names):
                    told = AddedRequest(each.request_id, len(each.prompt), each.sampling, each.arrival_s)
                    self._tell(methodcaller("added", told, queues))
                self._replies.settle(number)
            case messages.Left():
                self._left(event)
            case messages.Ready(facts):
                self.facts, self.config, self._is_up, self._lost = facts, facts.config, True, None
                self._tell(methodcaller("started", facts))
                self._replies.settle(0)
            case messages.Configured(number, config):
                self.config = config
                self._tell(methodcaller("configured", config))
                self._replies.settle(number)
            case messages.Refused(number, error):
                self._adding.pop(number, None)
                self._replies.settle(number, error)
            case messages.MemoryNote(text):
                self.memory_note = text

    def ended(self) -> None:
        """Fail whoever waits, and start the engine again if it can be."""
        was_up, self._is_up = self._is_up, False
        self._adding.clear()
        gone = messages.EngineStoppedError("the engine has stopped")
        self._left(messages.Left(tuple(self._streams), messages.Queues(), gone))
        self._replies.fail(gone)
        if was_up and self._link.can_restart and not self._is_closing and self._restart is None:
            self._restart = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        # A device that has just failed once more gets a minute.
        now_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        if self._lost is not None:
            pause_s = _LOST_PAUSE_S if now_s - self._lost_s < _LOST_PAUSE_S else pause_s
            self._lost_s = now_s + pause_s
        while not self._is_up:
            _LOG.error("the engine has died: it is started again in %g s", pause_s)
            await asyncio.sleep(pause_s)
            pause_s = max(pause_s, min(2 * pause_s, _LONGEST_PAUSE_S))
            try:
                await self.start()
            except Exception as error:
                _LOG.error("the engine does not start: %s", error)
        self._restart = None

    def _put(self, outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            if (stream := self._streams.get(output.request_id)) is not None:
                stream.put(output)
                if stream.is_done:
                    self._forget(output.request_id)

    def _left(self, event: messages.Left) -> None:
        if isinstance(event.error, messages.DeviceLostError):
            self._lost = event.error
        for name in event.request_ids:
            if event.error is not None and (stream := self._forget(name)) is not None:
                stream.fail(event.error)
            self._tell(methodcaller("failed" if event.error else "aborted", name, event.queues))

    def _forget(self, request_id: str) -> RequestStream | None:
        stream = self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()
        return stream

    def _tell(self, tell: Callable[[EngineListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception:  # a failing metric must not end a request
                _LOG.exception("%s failed", type(listener).__name__)
