"""`batch`: a file of requests becomes a file of answers."""

import asyncio
import json
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
from fastapi import FastAPI
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, log, plural
from tiny_llm_lab.serving.offline import answer_file
from tiny_llm_lab.serving.offline.answer_file import (
    MAX_LINE_BYTES,
    AnswerFile,
    BatchLine,
    InputIndex,
    Record,
    UnwritableError,
    index_input,
    read_lines,
)
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.api import served_names, start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.command import add_served_model, model_settings
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError

Answer = Callable[[answer_file.BatchRequest], Awaitable[answer_file.Record]]


def bad_line_record(line: answer_file.BadLine) -> answer_file.Record:
    """The record of a line that is not a request."""
    return answer_file.error_record(line, "invalid_request", line.reason)


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


async def answer_of(client: httpx2.AsyncClient, request: answer_file.BatchRequest) -> answer_file.Record:
    """The record of a request, whether it succeeded or not. Waits while the application's queue is full.

    Raises StoppedError if the application has stopped: then you can run the unanswered lines again.
    """
    content = json.dumps(request.body)  # ASCII, so that lone surrogates survive
    headers = {"content-type": "application/json"}
    while True:
        response = await client.post(request.url, content=content, headers=headers)
        if response.status_code != _BUSY:
            break
        await asyncio.sleep(_RETRY_S)
    if response.status_code == _STOPPED:
        raise StoppedError(f"the engine has stopped: {response.text[:500]}")
    try:
        body = response.json()
    except ValueError:
        message = f"status {response.status_code} without JSON: {response.text[:500]}"
        return answer_file.error_record(request, "server_error", message)
    own_id = body.get("id", "") if isinstance(body, dict) else ""
    request_id = response.headers.get("x-request-id") or str(own_id)
    return answer_file.answer_record(request, response.status_code, request_id, body)


@asynccontextmanager
async def running_app(app: FastAPI) -> AsyncIterator[Answer]:
    """Start an application, which answers requests of a batch, and stop it at the end."""
    life = app.router.lifespan_context(app)
    await life.__aenter__()
    try:
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=None
        ) as client:
            yield partial(answer_of, client)
    finally:
        await life.__aexit__(None, None, None)  # like a server, however the requests ended


HELP = "Answer a file of prompts or of OpenAI's batch requests; run the same command again to resume it."
EXAMPLES: Final = (
    ("--input prompts.txt --output answers.jsonl", "answer the lines that have no answer yet"),
    ("--input prompts.jsonl --output answers.jsonl --ray --num-replicas 4", "with four engines on Ray"),
)


def add_arguments(parser: ArgumentParser) -> None:
    about = 'text with a prompt a line, or requests: {"custom_id", "method": "POST", "url", "body"}'
    parser.add_argument("--input", required=True, metavar="FILE", help=about)
    parser.add_argument("--output", required=True, metavar="FILE", help="file to which answers are appended")
    about = "requests sent to each engine at a time (default: twice --max-num-seqs)"
    parser.add_argument("--max-concurrency", type=at_least_one, metavar="N", help=about)
    parser.add_argument("--ray", action="store_true", help="run on Ray Data (needs the optional group ray)")
    about = "address of a Ray cluster, with --ray (default: start a local one)"
    parser.add_argument("--address", metavar="A", help=about)
    about = "number of engines, with --ray (default: 1)"
    parser.add_argument("--num-replicas", type=at_least_one, metavar="N", help=about)
    about = "name of the model in requests; may be repeated (default: --model)"
    parser.add_argument("--served-model-name", action="append", default=[], metavar="NAME", help=about)
    add_served_model(parser)


def run(args: Namespace) -> int:
    source, target = _paths(args)
    settings, names = model_settings(args), tuple(args.served_model_name)
    places = args.max_concurrency or 2 * settings.engine.config.max_num_seqs
    index = index_input(source)
    with AnswerFile(target, index, served_names(names, settings)[0]) as answers:
        lines = unanswered(read_lines(source), set(answers.answered))
        try:
            with _progress(answers, index) as write:
                if len(answers.answered) < len(index):
                    if args.ray:
                        _run_on_ray(args, lines, write, places)
                    else:
                        asyncio.run(_run_here(lines, batch_app(settings, names), write, places))
            answers.sync()
        except (UnwritableError, StoppedError) as error:
            log(f"error: {error}")
            return EXIT_FAILED
        total = plural(len(answers.answered), "request")
        log(f"{total} answered · {answers.num_failed} failed · {target}")
        if answers.num_failed:
            log(f"the first failure: {answers.first_failure}")
        return EXIT_FAILED if answers.num_failed else 0


def batch_app(settings: ModelSettings, names: tuple[str, ...] = ()) -> FastAPI:
    """The server's application for a model of these names; it drops running requests when you stop it."""
    return create_app(
        lambda: start_model(settings, names), ServerSettings(drain_s=0.0, max_body_size=2 * MAX_LINE_BYTES)
    )


async def _run_here(
    lines: Iterator[BatchLine], app: FastAPI, write: Callable[[Record], None], places: int
) -> None:
    async with running_app(app) as answer:
        await answer_all(lines, answer, write, places)


def _run_on_ray(
    args: Namespace, lines: Iterator[BatchLine], write: Callable[[Record], None], places: int
) -> None:
    from tiny_llm_lab.serving.ray_cluster.command import connect, share_cores

    settings, num_replicas = model_settings(args), args.num_replicas or 1
    threads = share_cores(settings.threads, num_replicas)
    with connect(args.address, shows_workers=False):
        from tiny_llm_lab.serving.ray_cluster.on_ray import EnginePool, answer_on_ray

        make_app = partial(batch_app, replace(settings, threads=threads), tuple(args.served_model_name))
        answer_on_ray(lines, make_app, write, EnginePool(num_replicas, threads, places))


def _paths(args: Namespace) -> tuple[Path, Path]:
    source, target = Path(args.input), Path(args.output)
    if "-" in (args.input, args.output):
        raise UserError("a batch resumes from its files, so --input and --output cannot be -: name two files")
    if source.exists() and not source.is_file():
        raise UserError(f"--input {source} is not a regular file, and a batch reads it twice: name a file")
    if source.exists() and target.exists() and source.samefile(target):
        raise UserError(f"--output {target} is also the input: choose another file")
    if not args.ray and (args.address or args.num_replicas):
        raise UserError("--address and --num-replicas need --ray: add it")
    return source, target


@contextmanager
def _progress(answers: AnswerFile, index: InputIndex) -> Iterator[Callable[[Record], None]]:
    """`append` of the answers, under a bar on stderr."""
    console, total = Console(stderr=True), len(index)
    if answers.answered:
        log(f"{len(answers.answered)} of {total} were answered before")
    columns = ("batch", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("batch", total=total, completed=len(answers.answered))

        def write(record: Record) -> None:
            answers.append(record)
            bar.update(task, completed=len(answers.answered))

        yield write
