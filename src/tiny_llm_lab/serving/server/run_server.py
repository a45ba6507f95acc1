"""A server from its start to its end: the model, the socket, the signals."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import uvicorn

from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.certificate import require_certificate
from tiny_llm_lab.serving.server.http_protocol import HttpProtocol
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError

_LOG: Final = logging.getLogger("tiny_llm.server")
_LAST_WORDS_S: Final = 5  # for clients to read how their requests ended


async def run_server(start: Callable[[], Awaitable[ServedModel]], settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends the process at once.

    Raises UserError for an address or a certificate that cannot be used, and what `start` raises.
    """
    require_certificate(settings)
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
    """Lines on stderr: the server's, and uvicorn's warnings."""
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
        ssl_certfile=settings.ssl_certfile or None,
        ssl_keyfile=settings.ssl_keyfile or None,
        ws="none",
        log_config=None,
        access_log=settings.enable_log_requests,
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )


async def _drain(served: ServedModel, server: uvicorn.Server, drain_s: float) -> None:
    """Refuse new requests while the others finish, then close; /health tells a load balancer meanwhile."""
    num_running = served.engine.num_requests
    _LOG.info(f"stopping: {plural(num_running, 'request')} may take up to {drain_s:g} s to finish")
    num_lost = await served.engine.stop(drain_s)
    if num_lost:
        _LOG.warning(f"{plural(num_lost, 'request')} did not finish in time and were ended")
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


_BACKLOG: Final = 2048
_FILES: Final = 65_536


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in it until a server takes them.

    Raises UserError for an address that cannot be used, or that another program uses.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UserError(f"{host!r} is not an address of this machine: choose another --host") from None
    # By name, because asyncio leaves Nagle's delay on for the default protocol.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A port can be reused at once, even if the system still remembers its last connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)  # listen now, because only this detects another program on the port
    except OSError as error:
        sock.close()
        raise UserError(_complaint(error, host, port)) from None
    return sock


def allow_connections() -> None:
    """Let this process have as many connections open as the system allows it, _FILES at most.

    The usual limits, 256 and 1024, are below what the queue of a server takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _complaint(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use: stop the program that uses it, or choose another --port"
        case errno.EACCES:
            return f"this user may not listen on port {port}: choose a --port above 1023"
    return f"cannot listen on {host} port {port} ({error.strerror}): choose another --host or --port"


def startup_line(served: ServedModel, settings: ServerSettings, port: int) -> str:
    """The model, the address and the engine's settings."""
    config = served.config
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{settings.scheme}://{host}:{port}"
    who = "this machine only" if settings.is_loopback else "other machines too"
    open_to = "" if settings.api_key or settings.is_loopback else ", without a key"
    chunked = "on" if config.enable_chunked_prefill else "off"
    memory = readable(served.num_blocks * served.block_bytes)
    per_token = readable(served.block_bytes // served.block_size)
    states = f"{readable(served.model.state_bytes)} a sequence, {per_token} a token"
    snapshots = f"{served.num_snapshots} state snapshots" if served.num_snapshots else "no prefix cache"
    return " · ".join(
        [
            f"tiny-llm serves {', '.join(served.names)} on {address} ({who}{open_to})",
            f"chunked prefill is {chunked}, {config.max_num_batched_tokens:,} tokens a step",
            f"{served.num_blocks:,} KV blocks of {served.block_size} tokens ({memory})",
            f"{config.max_num_seqs} requests at a time, {served.max_num_tokens:,} tokens each",
            *([f"{states}, {snapshots}"] if served.model.state_bytes else []),
        ]
    )
