"""Several processes of one program on this machine, as the ranks of MLX's ring over loopback.

Across machines MLX's own `mlx.launch` starts the same program; `group` does not care who did.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import mlx.core as mx

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.types import UserError

_RANK, _HOSTS = "MLX_RANK", "MLX_HOSTFILE"  # how MLX's ring learns its rank and the addresses of all ranks
_POLL_S = 0.02
_GRACE_S = 0.5
_TIMED_OUT = 124  # as of `timeout`


def is_rank() -> bool:
    """Whether this process was started as one of several ranks."""
    return _RANK in os.environ


def is_first() -> bool:
    """Whether this process is rank 0, which may print, or not a rank at all."""
    return os.environ.get(_RANK, "0") == "0"


def group(size: int) -> mx.distributed.Group:
    """The group of this process, once all its `size` ranks have called this.

    Raises UserError when there are more or fewer, or when the ring cannot be built.
    """
    try:
        result = mx.distributed.init(strict=True, backend="ring")
    except RuntimeError as error:
        raise UserError(f"the ranks cannot reach each other ({error}): run the command again") from None
    if result.size() != size:
        raise UserError(f"you started {result.size()} ranks: set --tensor-parallel-size {result.size()}")
    return result


def launch(command: Sequence[str], size: int, timeout_s: float | None = None, *, stdin: bytes = b"") -> int:
    """Run `command` once a rank; the exit code is 0, or that of the first rank that fails.

    Each reads all of `stdin`. Rank 0 has this process's stdout and stderr. The stdout of all other ranks is
    dropped, and of their stderr only that of a failing rank is shown. When a rank fails, or after
    `timeout_s` (exit code 124), the remaining ranks are ended. Rank 0 handles Ctrl-C; a second one ends all.
    """
    with ExitStack() as stack:
        sentences = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(size)]
        each = environments(size, stack)
        running = [_start(command, rank, each[rank], sentences[rank], stdin) for rank in range(size)]
        try:
            code, failed = _wait(running, timeout_s)
        except KeyboardInterrupt:
            code, failed = _wait(running, timeout_s)  # rank 0 got it too, and ends by itself
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
            for process in running:
                process.wait()
        if failed and running[0].returncode <= 0:  # if above 0, rank 0 has ended by itself and printed why
            sentences[failed].seek(0)
            sys.stderr.write(sentences[failed].read())
        return code


def environments(size: int, stack: ExitStack) -> list[dict[str, str]]:
    """The environment variables of `size` processes that are to be ranks of one group, until `stack` closes.

    One process gets those of this one.
    """
    if size == 1:
        return [dict(os.environ)]
    hosts = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size)]))
    # Ranks share the cores; with more threads than cores they would wait for each other at every sum.
    shared = {native.THREADS_VARIABLE: str(max(1, usable_cores() // size)), **os.environ, _HOSTS: str(hosts)}
    return [shared | {_RANK: str(rank)} for rank in range(size)]


def _start(
    command: Sequence[str], rank: int, environment: dict[str, str], stderr: IO[str], stdin: bytes
) -> subprocess.Popen[bytes]:
    # A file for each rank, because readers of a shared one share its position.
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        out, err = (None, None) if rank == 0 else (subprocess.DEVNULL, stderr)
        return subprocess.Popen(command, env=environment, stdin=given, stdout=out, stderr=err)


def _wait(running: Sequence[subprocess.Popen[bytes]], timeout_s: float | None) -> tuple[int, int]:
    """The exit code of all ranks together, and the rank that decided it."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in running]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            # Most errors are common to all ranks, and then rank 0 has reported it already.
            time.sleep(_GRACE_S)
            failed = 0 if running[0].poll() else failed
            return running[failed].poll() or 0, failed
        if None not in codes:
            return 0, 0
        if deadline is not None and time.monotonic() > deadline:
            return _TIMED_OUT, 0
        time.sleep(_POLL_S)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:  # all at once, or two could get the same port
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
