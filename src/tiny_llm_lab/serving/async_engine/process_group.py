"""The processes of one engine, one for each rank, from their start to the end of the first of them."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from tiny_llm_lab.runtime import ranks
from tiny_llm_lab.serving.async_engine.messages import Command, EngineEvent, Stop
from tiny_llm_lab.serving.async_engine.wire import Unpacker, packed
from tiny_llm_lab.serving.options.engine_settings import ModelSettings

_LOG: Final = logging.getLogger("tiny_llm.engine")
_MODULE: Final = "tiny_llm_lab.serving.async_engine.engine_process"
_STOP_S: Final = 20.0  # a step may take long


@dataclass(frozen=True)
class StartEngine:
    """The first message to an engine's process. The numbers are file descriptors that it was given."""

    settings: ModelSettings
    log_level: int
    followers: tuple[int, ...] = ()  # of rank 0: a socket to each other rank
    leader: int | None = None  # of another rank: its socket to rank 0


class ProcessGroup:
    """Processes that begin and end together."""

    @classmethod
    async def start(
        cls,
        settings: ModelSettings,
        receive: Callable[[Sequence[EngineEvent]], None],
        ended: Callable[[], None],
    ) -> Self:
        """Start settings.tensor_parallel_size processes. `ended` is called once all of them have ended."""
        group = cls(receive, ended)
        size, level = settings.tensor_parallel_size, _LOG.getEffectiveLevel()
        pairs = [socket.socketpair() for _ in range(size - 1)]
        with ExitStack() as stack:
            for each in (end for pair in pairs for end in pair):
                stack.enter_context(each)
            first = StartEngine(settings, level, followers=tuple(end.fileno() for end, _ in pairs))
            others = [StartEngine(settings, level, leader=end.fileno()) for _, end in pairs]
            environments = ranks.environments(size, group._files)
            for start, environment in zip([first, *others], environments, strict=True):
                await group._start_one(start, environment)
        return group

    def __init__(self, receive: Callable[[Sequence[EngineEvent]], None], ended: Callable[[], None]) -> None:
        self._receive, self._ended = receive, ended
        self._files = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[asyncio.Transport] = []
        self._ending: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_over = asyncio.Event()

    def send(self, command: Command) -> None:
        """Give rank 0 a command."""
        self._lines[0].write(packed(command))

    async def stop(self) -> None:
        """Let the engine end, and wait for it."""
        self._is_stopping = True
        self.send(Stop())
        try:
            await asyncio.wait_for(self._is_over.wait(), _STOP_S)
        except TimeoutError:
            self._lost(0)
            await self._is_over.wait()

    async def _start_one(self, first: StartEngine, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [theirs.fileno(), *first.followers, *([first.leader] if first.leader else [])]
            command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
            # A process group of its own: Ctrl-C is for the server, which drains the engine first.
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, pass_fds=numbers, process_group=0
                )
            )
        lost = partial(self._lost, len(self._lines))
        loop = asyncio.get_running_loop()
        line, _ = await loop.create_connection(lambda: _Line(self._receive, lost), sock=ours)
        line.write(packed(first))
        self._lines.append(line)

    def _lost(self, rank: int) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(rank))

    async def _end(self, rank: int) -> None:
        for line, process in zip(self._lines, self._processes, strict=True):
            line.abort()
            process.kill()
        codes = [await asyncio.to_thread(process.wait) for process in self._processes]
        self._files.close()
        if codes[rank] and not self._is_stopping:
            _LOG.error("the engine's process %s", _end_of(codes[rank]))
        self._is_over.set()
        self._ended()


def _end_of(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, maybe by the system for want of memory"
    return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"


class _Line(asyncio.Protocol):
    """The connection to one process."""

    def __init__(self, receive: Callable[[Sequence[EngineEvent]], None], lost: Callable[[], None]) -> None:
        self._receive, self._lost = receive, lost
        self._unpacker = Unpacker()

    def data_received(self, data: bytes) -> None:
        for events in self._unpacker.add(data):
            self._receive(events)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
