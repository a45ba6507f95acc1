"""The servers of a lab: a fresh process for each variant, or one that is already running."""

import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Self

import httpx2

from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO
from tiny_llm_lab.runtime.ranks import free_ports
from tiny_llm_lab.types import UserError

_START_S: Final = 180.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.05
Handler = Callable[[int, FrameType | None], object] | int | None  # of a signal


@dataclass(frozen=True)
class Variant:
    """A configuration of the server: a short name, and flags of `serve`. Without flags it is any server."""

    name: str
    flags: tuple[str, ...] = ()


@dataclass
class RunningServers:
    """One server of somebody else's, at `base_url`; its settings are unknown."""

    base_url: str
    is_own: bool = field(default=False, init=False)

    def url(self, variant: Variant) -> str:
        """The URL, for every variant."""
        return self.base_url


@dataclass
class OwnServers:
    """Starts `serve` for a variant when it is first asked for, and ends all by SIGINT.

    With `one_at_a_time` a variant's server is ended before the next starts, for models that fit once.
    """

    arguments: Sequence[str]  # --model and its like, the same for all
    log_folder: Path
    one_at_a_time: bool = False
    is_own: bool = field(default=True, init=False)
    _before: Handler = field(default=None, init=False)
    _running: dict[Variant, "_Server"] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        # SIGTERM would end this process and leave its servers running.
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        signal.signal(signal.SIGTERM, self._before)

    def url(self, variant: Variant) -> str:
        """The URL of the variant's server, which is started if need be. Raises UserError if it ends."""
        if variant not in self._running:
            if self.one_at_a_time:
                self.close()
            file = self.log_folder / f"{'-'.join(variant.name.split())}.log"
            self._running[variant] = _Server([*self.arguments, *variant.flags], file)
        return self._running[variant].base_url

    def close(self) -> None:
        """End every server; kills the ones that do not end in time, and says so."""
        servers, self._running = list(self._running.values()), {}
        for server in servers:
            server.interrupt()
        for server in servers:
            server.wait()


Servers = RunningServers | OwnServers  # where variants are served; `is_own`: flags can be given


class _Server:
    """A process of `serve` that answers /health."""

    def __init__(self, arguments: Sequence[str], log_file: Path) -> None:
        (port,) = free_ports(1)
        self.base_url, self._log_file = f"http://127.0.0.1:{port}", log_file
        command = [sys.executable, "-m", "tiny_llm_lab", "serve", *arguments, "--port", str(port)]
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as output:
            # A group of its own: Ctrl-C in the terminal reaches the lab, and the lab ends its servers.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            self._wait_until_healthy(shown=" ".join(command[2:]))
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_until_healthy(self, shown: str) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                lines = self._log_file.read_text(encoding="utf-8", errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
                raise UserError(f"`{shown}` ended: {last.removeprefix('error: ')}")
            if is_healthy(self.base_url):
                return
            time.sleep(_POLL_S)
        raise UserError(f"`{shown}` did not answer /health in {_START_S:g} s: see {self._log_file}")

    def interrupt(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            log(f"a server ignored SIGINT for {_STOP_S:g} s and was killed: see {self._log_file}")
            self.process.kill()
            self.process.wait()


def serve_arguments(args: Namespace, model: str, max_model_len: int) -> list[str]:
    """The flags of `serve` for those of `add_model_arguments` and, if there, `add_kernel_arguments`."""
    chosen = ["--model", model, "--solution", args.solution, "--max-model-len", str(max_model_len)]
    for name in ("device", "dtype", "threads", "activation_bits"):
        value = getattr(args, name, None)
        chosen += [f"--{name.replace('_', '-')}", str(value)] if value not in (None, AUTO) else []
    return chosen


def is_healthy(base_url: str) -> bool:
    """Whether a server answers /health with 200."""
    try:
        return httpx2.get(f"{base_url}/health", timeout=1.0).status_code == 200
    except httpx2.TransportError:
        return False
