"""Forms that nobody has seen are tried in another process, which may die of them."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from tiny_llm_lab.runtime.structured.trial_process import SIZE
from tiny_llm_lab.types import UserError

_MODULE: Final = "tiny_llm_lab.runtime.structured.trial_process"
_REMEMBERED: Final = 1024  # forms that have passed


# The arguments of llguidance's tokenizer.
TokenizerArguments = dict[str, str | int | list[int]]


class RefusedFormError(Exception):
    """A form can't be compiled; the text is llguidance's reason."""


class Trials:
    """Tries the forms of one tokenizer, in a process that the first one starts."""

    def __init__(self, tokenizer: Callable[[], TokenizerArguments], timeout_s: float) -> None:
        """A form may take `timeout_s` seconds of CPU time. Sets process = None: the first form starts it."""
        self.process: subprocess.Popen[bytes] | None = None
        self._tokenizer, self._timeout_s = tokenizer, timeout_s
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._stop: Callable[[], object] = lambda: None
        self._passed: OrderedDict[bytes, float] = OrderedDict()  # CPU seconds

    def require(self, grammar: str, left: "Future[None] | None" = None) -> float:
        """Try `grammar`, which ends when `left` is done; returns the CPU seconds that it took.

        Raises RefusedFormError for a form that llguidance refuses, and UserError for one that takes too
        much.
        """
        name = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        if (known := self._passed.get(name)) is not None:
            return known
        answer = self._answer(grammar.encode("utf-8", "replace"), left)
        if limit := answer.get("limit"):
            raise UserError(f"structured_outputs {self._complaint(str(limit))}")
        if error := answer.get("error"):
            raise RefusedFormError(error)
        with self._lock:
            self._passed[name] = float(answer["cpu_s"])
            while len(self._passed) > _REMEMBERED:
                self._passed.popitem(last=False)
        return self._passed[name]

    def _answer(self, grammar: bytes, left: "Future[None] | None") -> dict[str, str | float]:
        for _ in range(2):  # a process that has died is started again
            data = self._asked(grammar, left)
            if left is not None and left.done():
                return {"limit": "left"}
            if data:
                results: dict[str, str | float] = json.loads(data)
                return results
        return {"limit": "stack"}

    def _asked(self, grammar: bytes, left: "Future[None] | None") -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.suppress(OSError):
            self._send(theirs)
            theirs.close()
            if left is not None:
                left.add_done_callback(lambda _: _hang_up(ours))
            ours.sendall(SIZE.pack(len(grammar)) + grammar)
            return b"".join(iter(lambda: ours.recv(1 << 16), b""))
        return b""

    def _send(self, client: socket.socket) -> None:
        with self._lock:
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._hand_over(self._control, client)
                    return
            self._stop()
            self._control = self._start()
            self._hand_over(self._control, client)

    def _hand_over(self, control: socket.socket, client: socket.socket) -> None:
        """Return when the process has taken `client`. Raises OSError when it has died."""
        try:
            socket.send_fds(control, [b"f"], [client.fileno()])
            # Wait for its word: macOS shuts a socket that is open in no process while a message carries it.
            if not control.recv(1):
                raise ConnectionResetError
        except BaseException:
            self._stop()  # or what it says later would be taken for its word on the next form
            raise

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
            # A process group of its own, because Ctrl-C is for its owner.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
        self.process = process
        self._stop = weakref.finalize(self, _end, process, ours)
        first = json.dumps({"tokenizer": self._tokenizer(), "timeout_s": self._timeout_s}).encode()
        ours.sendall(SIZE.pack(len(first)) + first)
        return ours

    def _complaint(self, limit: str) -> str:
        simplify = "simplify the schema, expression or grammar"
        costs = "a large multipleOf, counts in patterns and rules that refer to each other cost most"
        return {
            "time": f"takes more than {self._timeout_s:g} s to compile: {simplify}; {costs}",
            "memory": f"takes too much memory to compile: {simplify}",
            "stack": f"is nested too deeply to compile: {simplify}",
            "left": "is not compiled, because its client has left: ask again",
        }[limit]


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # its children compile for nobody
    process.wait()
