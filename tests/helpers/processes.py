"""Servers in processes of their own, and requests to them while something happens."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

DEADLINE_S = 240.0


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is told to end, and then ended; without an `environment` it finds what this one does."""
    environment = environment or os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def finished(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """What a process has said, and how it ended; `options` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def tiny_llm(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tiny_llm_lab", *arguments]


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not happen in {DEADLINE_S:g} s"
        time.sleep(0.1)


def answers(port: int, path: str) -> bool:
    """Whether an address of this machine answers with 200."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/{path}", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def is_healthy(port: int) -> bool:
    return answers(port, "health")


def ask_while(
    port: int, num_requests: int, event: Callable[[], None], stream: bool = False, num_clients: int = 6
) -> Counter[str]:
    """How many answers came whole, by status, when `event` is called after a third of them."""
    outcomes: Counter[str] = Counter()
    numbers = iter(range(num_requests))

    async def client(http: httpx2.AsyncClient) -> None:
        for number in numbers:
            if number == num_requests // 3:
                event()
            outcomes[await _outcome(http, number, stream)] += 1

    async def run() -> None:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as http:
            await asyncio.gather(*(client(http) for _ in range(num_clients)))

    asyncio.run(run())
    return outcomes


async def _outcome(http: httpx2.AsyncClient, number: int, stream: bool) -> str:
    asked = {"model": "default", "prompt": f"Question {number}:", "max_tokens": 24}
    body = asked | {"ignore_eos": True, "stream": stream}
    try:
        answer = await http.post("/v1/completions", json=body)
    except httpx2.HTTPError as error:
        return type(error).__name__
    is_cut = stream and not answer.text.rstrip().endswith("data: [DONE]")
    return f"{answer.status_code}{' cut' if is_cut else ''}"
