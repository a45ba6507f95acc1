"""Tries forms: `python -m tiny_llm_lab.runtime.structured.trial_process DESCRIPTOR`.

This process has one thread, a tokenizer and no MLX, so that it forks fast. A form comes as a socket. A child
reads the grammar from that socket, compiles it and writes what it found. A child that takes more than its
limits dies, and this process writes why.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from llguidance import LLTokenizer

from tiny_llm_lab.runtime.structured.compiling import compiled, on_large_stack, require_cheap

SIZE: Final = struct.Struct("!I")
_MOST: Final = 8  # children at a time
_BESIDE: Final = 10  # how nice a child is that is not the only one
_FAST_S: Final = 0.1  # a child that takes longer gives way to everybody
_WALL: Final = 5  # times the limit of CPU time, on a machine that is busy
_MEMORY_BYTES: Final = 1 << 30  # of a child, its stack included
_STACK_BYTES: Final = 224 << 20  # less than the engine has, so that what passed fits there
_POLL_MS: Final = 50
_GONE: Final = select.POLLHUP | select.POLLERR | select.POLLNVAL
_LIMITS: Final[dict[int, str]] = {signal.SIGPROF: "time", signal.SIGABRT: "memory", signal.SIGKILL: "memory"}


def read_message(sock: socket.socket) -> bytes:
    """The bytes behind their `SIZE`; fewer when the other end has left."""

    def read(size: int) -> bytes:
        result = bytearray()
        while len(result) < size and (piece := sock.recv(min(size - len(result), 1 << 16))):
            result += piece
        return bytes(result)

    size = read(SIZE.size)
    return read(SIZE.unpack(size)[0]) if len(size) == SIZE.size else b""


@dataclass(frozen=True)
class _Trial:
    """A child that compiles a form."""

    pid: int
    client: socket.socket
    end: int  # hangs up when the child has ended
    begun_s: float


class Trials:
    """Children and the forms that wait for one."""

    def __init__(self, control: socket.socket, library: LLTokenizer, timeout_s: float) -> None:
        """Forms come over `control`; each may take `timeout_s` of CPU time."""
        self._control, self._library, self._timeout_s = control, library, timeout_s
        self._waiting: deque[socket.socket] = deque()
        self._running: list[_Trial] = []

    def run(self) -> None:
        """Until the other end of `control` is closed."""
        while (gone := self._wait()) is not None:
            for trial in list(self._running):
                if verdict := self._verdict(trial, gone):
                    self._end(trial, verdict)
            while self._waiting and len(self._running) < _MOST:
                self._fork(self._waiting.popleft())
        for trial in list(self._running):
            self._end(trial, "left")

    def _wait(self) -> Collection[int] | None:
        """Which descriptors have hung up; takes a new form. None when the owner has left."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for trial in self._running:
            for each in (trial.end, trial.client):
                poll.register(each, select.POLLHUP)  # macOS reports none if nothing is asked for
        ready = dict(poll.poll(_POLL_MS if self._running else None))
        if self._control.fileno() in ready and not self._take():
            return None
        return {each for each, events in ready.items() if events & _GONE}

    def _take(self) -> bool:
        """Take a new form, and say so. False when the owner has left."""
        try:
            result, descriptors, *_ = socket.recv_fds(self._control, 1, 1)
            self._waiting.extend(socket.socket(fileno=each) for each in descriptors)
            if result:
                self._control.sendall(b"t")  # also without a descriptor, or the owner would wait for ever
        except ConnectionError:
            return False
        return bool(result)

    def _verdict(self, trial: _Trial, gone: Collection[int]) -> str:
        """Why a child ends now; "" if it goes on, behind everybody else if it takes long."""
        wall_s = time.monotonic() - trial.begun_s
        if trial.end in gone:
            return "ended"
        if trial.client.fileno() in gone:
            return "left"
        if wall_s > self._timeout_s * (1 if self._waiting else _WALL):
            return "time"
        if wall_s > _FAST_S:
            with contextlib.suppress(ProcessLookupError):  # on macOS, if it has ended since we looked
                os.setpriority(os.PRIO_PROCESS, trial.pid, 19)
        return ""

    def _end(self, trial: _Trial, verdict: str) -> None:
        if verdict != "ended":
            os.kill(trial.pid, signal.SIGKILL)
        _, status = os.waitpid(trial.pid, 0)
        if os.WIFSIGNALED(status):
            limit = _LIMITS.get(os.WTERMSIG(status), "stack") if verdict == "ended" else verdict
            with contextlib.suppress(OSError):  # it may have left
                trial.client.sendall(json.dumps({"limit": limit}).encode())
        os.close(trial.end)
        trial.client.close()
        self._running.remove(trial)

    def _fork(self, client: socket.socket) -> None:
        end, child_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.nice(_BESIDE if self._running else 0)  # many are not to slow down the steps of the engine
            for each in (self._control, *self._waiting, *(trial.client for trial in self._running)):
                each.close()  # or their other ends would wait for this child
            self._try(client)
        os.close(child_end)
        self._running.append(_Trial(pid, client, end, time.monotonic()))

    def _try(self, client: socket.socket) -> NoReturn:
        """The child: read, compile, say."""
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what foreign code says when it dies
            grammar = read_message(client).decode()
            _limit(self._timeout_s)
            results: dict[str, str | float] = {}
            try:
                on_large_stack(
                    threading.Lock(), lambda: require_cheap(compiled(self._library, grammar)), _STACK_BYTES
                )
            except ValueError as error:
                results["error"] = str(error)
            except MemoryError:
                results["limit"] = "memory"
            client.sendall(json.dumps({**results, "cpu_s": time.process_time()}).encode())
        finally:
            os._exit(0)


def _limit(timeout_s: float) -> None:
    """Limit this process. macOS has no limit of memory."""
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        nbytes = int(sizes.read_text().split()[0]) * resource.getpagesize() + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def main() -> int:
    """Try forms until the owner leaves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    first = json.loads(read_message(control))
    library = LLTokenizer(**first["tokenizer"])
    Trials(control, library, first["timeout_s"]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
