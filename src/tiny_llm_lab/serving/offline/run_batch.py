"""Sends the requests of a batch to an application in this process, through the server's own routes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from fastapi import FastAPI

from tiny_llm_lab.serving.offline import answer_file

Answer = Callable[[answer_file.BatchRequest], Awaitable[answer_file.Record]]


def bad_line_record(line: answer_file.BadLine) -> answer_file.Record:
    """The record of a line that is not a request."""
    return answer_file.error_record(line.line, line.custom_id, "invalid_request", line.reason)


def unanswered(lines: Iterable[answer_file.BatchLine], answered: set[int]) -> Iterator[answer_file.BatchLine]:
    """The lines without a record so far."""
    return (each for each in lines if each.line not in answered)


async def answer_all(
    lines: Iterable[answer_file.BatchLine],
    answer: Answer,
    write: Callable[[answer_file.Record], None],
    max_concurrency: int,
) -> None:
    """Write a record for every line, in the order in which they end.

    No line is read before one of `max_concurrency` places is free. The first error of `answer` or `write`
    ends all requests and is raised.
    """
    places = asyncio.Semaphore(max_concurrency)

    async def one(request: answer_file.BatchRequest) -> None:
        try:
            write(await answer(request))
        finally:
            places.release()

    try:
        async with asyncio.TaskGroup() as group:
            for each in lines:
                if isinstance(each, answer_file.BadLine):
                    write(bad_line_record(each))
                    continue
                await places.acquire()
                group.create_task(one(each))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


_BUSY, _STOPPED = 429, 503
_RETRY_S: Final = 0.2


class StoppedError(Exception):
    """The application takes no more requests; the message is its answer."""


class AppClient:
    """Sends requests of a batch to an application."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def answer(self, request: answer_file.BatchRequest) -> answer_file.Record:
        """The record of a request, whether it succeeded or not. Waits while the application's queue is full.

        Raises StoppedError if the application has stopped: then you can run the unanswered lines again.
        """
        content = json.dumps(request.body)  # ASCII, so that lone surrogates survive
        headers = {"content-type": "application/json"}
        while True:
            response = await self._client.post(request.url, content=content, headers=headers)
            if response.status_code != _BUSY:
                break
            await asyncio.sleep(_RETRY_S)
        if response.status_code == _STOPPED:
            raise StoppedError(f"the engine has stopped: {response.text[:500]}")
        try:
            body = response.json()
        except ValueError:
            message = f"status {response.status_code} without JSON: {response.text[:500]}"
            return answer_file.error_record(request.line, request.custom_id, "server_error", message)
        own_id = body.get("id", "") if isinstance(body, dict) else ""
        request_id = response.headers.get("x-request-id") or str(own_id)
        return answer_file.answer_record(request, response.status_code, request_id, body)


@asynccontextmanager
async def running_app(app: FastAPI) -> AsyncIterator[AppClient]:
    """Start an application, and stop it at the end."""
    life = app.router.lifespan_context(app)
    await life.__aenter__()
    try:
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=None
        ) as client:
            yield AppClient(client)
    finally:
        await life.__aexit__(None, None, None)  # like a server, however the requests ended
