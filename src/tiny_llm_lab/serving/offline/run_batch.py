"""All requests of a batch, so many at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

from tiny_llm_lab.serving.offline.answer_file import Record, error_record
from tiny_llm_lab.serving.offline.batch_input import BadLine, BatchLine, BatchRequest

Answer = Callable[[BatchRequest], Awaitable[Record]]


def bad_line_record(line: BadLine) -> Record:
    """The record of a line that no application is asked about."""
    return error_record(line.line, line.custom_id, "invalid_request", line.reason)


def unanswered(lines: Iterable[BatchLine], answered: set[int]) -> Iterator[BatchLine]:
    """The lines that have no record yet."""
    return (each for each in lines if each.line not in answered)


async def answer_all(
    lines: Iterable[BatchLine], answer: Answer, write: Callable[[Record], None], max_concurrency: int
) -> None:
    """Write a record for every line, in the order in which they end.

    No line is read before one of `max_concurrency` places is free. The first error of `answer` or `write`
    ends all requests and is raised.
    """
    places = asyncio.Semaphore(max_concurrency)

    async def one(request: BatchRequest) -> None:
        try:
            write(await answer(request))
        finally:
            places.release()

    try:
        async with asyncio.TaskGroup() as group:
            for each in lines:
                if isinstance(each, BadLine):
                    write(bad_line_record(each))
                    continue
                await places.acquire()
                group.create_task(one(each))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
