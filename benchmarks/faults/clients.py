"""Clients that behave badly, on sockets of their own, and streams whose gaps are measured beside them."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

PATIENCE_S = 120.0
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
SHORT = {"prompt": "Once", "max_tokens": 4}


@dataclass
class Outcome:
    """What became of the requests of one fault."""

    tried: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    lost: int = 0  # should have been answered in full
    note: str = ""

    def add(self, status: str, is_lost: bool = False) -> None:
        self.tried += 1
        self.statuses[status] += 1
        self.lost += is_lost


def request(body: dict[str, Any] | bytes, path: str = "/v1/completions", headers: str = "") -> bytes:
    """A request after whose answer the connection is closed."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answer(port: int, sent: bytes) -> tuple[str, bytes]:
    """Status and content of the answer to raw bytes; "none" when the connection ends or stays silent."""
    try:
        async with asyncio.timeout(PATIENCE_S), connected(port) as (reader, writer):
            with contextlib.suppress(OSError):  # refused before all was sent: the answer may be there
                writer.write(sent)
                await writer.drain()
            content = await reader.read()
    except (OSError, TimeoutError) as error:
        return type(error).__name__, b""
    return (content.split(b" ", 2)[1].decode() if content.startswith(b"HTTP/1.1 ") else "none"), content


def is_whole(content: bytes) -> bool:
    """Whether a completion, streamed or not, came to its end."""
    return b"[DONE]" in content or b'"usage":{' in content


async def vanish(port: int, body: dict[str, Any]) -> str:
    """Leave in the middle of the answer."""
    async with connected(port) as (reader, writer):
        writer.write(request(body))
        if body.get("stream"):
            await reader.readuntil(b"data:")
        else:
            await asyncio.sleep(0.05)
        writer.transport.abort()
    return "left"


async def gaps_of_streams(port: int, num_streams: int, num_tokens: int) -> list[list[float]]:
    """Seconds between the events of each of `num_streams` streams at once; [] for one that broke."""
    body = {"prompt": "One day", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}

    async def stream() -> list[float]:
        times: list[float] = []
        async with connected(port) as (reader, writer):
            writer.write(request(body))
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
                elif line.startswith(b"data: [DONE]"):
                    return [after - before for before, after in pairwise(times)]
        return []

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*(stream() for _ in range(num_streams)))


def longest(gaps: Iterable[list[float]]) -> str:
    return f"{1000 * max((gap for each in gaps for gap in each), default=float('nan')):.0f} ms"


async def beside_streams(port: int, fault: Awaitable[None], num_tokens: int = 1500) -> str:
    """The longest gap of eight streams alone, and of eight while `fault` happens."""
    alone = await gaps_of_streams(port, 8, num_tokens)
    task = asyncio.ensure_future(fault)
    await asyncio.sleep(0.05)
    beside = await gaps_of_streams(port, 8, num_tokens)
    await task
    return f"longest gap of 8 streams: {longest(alone)} alone, {longest(beside)} beside it"


async def read_slowly(port: int, body: dict[str, Any], seconds: float) -> None:
    """Read a byte a second of a stream, and leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(request({**body, "stream": True}))
    for _ in range(int(seconds)):
        await reader.read(1)
        await asyncio.sleep(1)
    writer.transport.abort()
