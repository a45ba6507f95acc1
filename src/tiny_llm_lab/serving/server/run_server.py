"""A server from its start to its end: the model, the socket, the signals."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import uvicorn

from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.http_protocol import HttpProtocol
from tiny_llm_lab.serving.server.listening import allow_connections, listen
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.serving.server.startup import startup_line

_LOG: Final = logging.getLogger("tiny_llm.server")
_LAST_WORDS_S: Final = 5  # for clients to read what the end of their requests was


async def run_server(start: Callable[[], Awaitable[ServedModel]], settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends the process at once.

    Raises UserError for an address that cannot be used, and what `start` raises.
    """
    allow_connections()
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        served = await start()

        async def started() -> ServedModel:
            return served

        server = _Server(_config(create_app(started, settings), settings))
        with _signals(lambda: _drain(served, server, settings.drain_s)):
            _LOG.info(startup_line(served, settings, sock.getsockname()[1]))
            await server.serve(sockets=[sock])
    _LOG.info("stopped")


def configure_logging(enable_log_requests: bool) -> None:
    """Lines on stderr: those of the server, and uvicorn's warnings."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger(_LOG.name.partition(".")[0]).setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if enable_log_requests else logging.WARNING)


class _Server(uvicorn.Server):
    """Uvicorn without its own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: Callable[..., object], settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        log_config=None,
        access_log=settings.enable_log_requests,
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )


async def _drain(served: ServedModel, server: uvicorn.Server, drain_s: float) -> None:
    """Refuse new requests while those there finish, then close: meanwhile /health tells a balancer why."""
    num_running = served.engine.num_requests
    _LOG.info(f"stopping: {plural(num_running, 'request')} may take {drain_s:g} s to finish")
    num_lost = await served.engine.stop(drain_s)
    if num_lost:
        _LOG.warning(f"{plural(num_lost, 'request')} had not finished and were ended")
    server.should_exit = True


@contextlib.contextmanager
def _signals(drain: Callable[[], Awaitable[None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Future[None]] = []

    def handle(number: signal.Signals) -> None:
        if begun:
            print("ended at once", file=sys.stderr, flush=True)
            os._exit(128 + number)  # a step may take long, and its thread cannot be stopped
        begun.append(asyncio.ensure_future(drain()))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
