"""A batch on Ray Data: a pool of engines answers, and this process alone writes.

Needs Ray; nothing else of the package imports this module.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import pyarrow
import ray
import ray.data
from fastapi import FastAPI

from tiny_llm_lab.serving.offline.answer_file import BadLine, BatchLine, BatchRequest, Record
from tiny_llm_lab.serving.offline.command import Answer, StoppedError, bad_line_record, running_app

_BATCHES: Final = 4  # batches in an engine at a time, so that the next one begins while the last ends


@dataclass(frozen=True)
class EnginePool:
    """The engines of a batch."""

    num_replicas: int
    num_cpus: int  # of a node, for each engine
    max_concurrency: int  # requests of each engine at a time


class Answerer:
    """An engine in an actor of Ray Data."""

    def __init__(self, make_app: Callable[[], FastAPI]) -> None:
        self._make_app = make_app
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[Answer] | None = None

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[str]]]:
        """Yields the records of a batch as they end."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        answer = await self._starting
        requests = [BatchRequest(**json.loads(each)) for each in batch["request"]]
        for record in asyncio.as_completed([answer(each) for each in requests]):
            yield {"record": [json.dumps(await record)]}

    async def _start(self) -> Answer:
        return await self._stack.enter_async_context(running_app(self._make_app()))


def answer_on_ray(
    lines: Iterable[BatchLine],
    make_app: Callable[[], FastAPI],
    write: Callable[[Record], None],
    pool: EnginePool,
) -> None:
    """Write a record for every line, a batch at a time as batches end.

    Requests wait in Ray's object store, which spills to disk. A batch whose engine dies is asked again of
    another. Raises StoppedError when Ray gives up.
    """
    batch_size = max(1, pool.max_concurrency // _BATCHES)
    blocks = [ray.put(each) for each in _blocks(lines, write, batch_size)]
    if not blocks:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    records = ray.data.from_arrow_refs(blocks).map_batches(
        Answerer,
        fn_constructor_args=(make_app,),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(
            size=pool.num_replicas,
            max_tasks_in_flight_per_actor=_BATCHES,
            max_concurrent_calls_per_actor=_BATCHES,
        ),
        num_cpus=pool.num_cpus,
    )
    try:
        for row in records.iter_rows():
            write(json.loads(row["record"]))
    except ray.exceptions.RayError as error:
        raise StoppedError(f"Ray ended the batch: {error}: run the same command again") from error


def _blocks(
    lines: Iterable[BatchLine], write: Callable[[Record], None], size: int
) -> Iterator[pyarrow.Table]:
    requests = _good(lines, write)
    while chunk := list(islice(requests, size)):
        yield pyarrow.table({"request": [json.dumps(asdict(each)) for each in chunk]})


def _good(lines: Iterable[BatchLine], write: Callable[[Record], None]) -> Iterator[BatchRequest]:
    for each in lines:
        if isinstance(each, BadLine):
            write(bad_line_record(each))
        else:
            yield each
