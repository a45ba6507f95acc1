"""A server from its start to its end: the model, the socket, the signals."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import uvicorn
from starlette.types import ASGIApp, Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tiny_llm_lab.runtime.console import talk
from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.serving.server.api import ApiError, ServedModel, to_json
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import UserError

_HEAD_BYTES: Final = 64 * 2**10


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """`cycle.send` for a client that knows no chunks: a body of unknown length ends with the connection."""
    send, has_length = cycle.send, False

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)  # type: ignore[arg-type]

    return send_plain


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol without chunks for HTTP/1.0, and with two limits, one of size and one of time.

    A connection that sends more than 64 KiB without a body, or the end of a request, is answered with 400 and
    closed: that bounds heads, trailers and extensions of chunks. One whose next request has no complete head
    `head_timeout_s` after the last answer is closed: uvicorn has no limit once the first byte has come, and
    none for the first request of a connection.
    """

    head_timeout_s = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self._num_bytes = 0  # since the last piece of a body or the end of the last request
        self._has_head = False  # a request whose answer has not ended
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, which may end anywhere in a request."""
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large: send less than 64 KiB.")

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._has_head = True
        super().on_headers_complete()
        if self.scope["http_version"] < "1.1":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[assignment, method-assign]

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request that a route could see, in the form of its API's errors."""
        message = f"{msg} Send a request of HTTP/1.1, and close the connection after this answer."
        body = to_json(ApiError(400, message).body(self.url.decode("latin-1")))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._num_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The end of an answer."""
        if not self.transport.is_closing():
            self._wait_for_head()
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._cancel()
        self._has_head = bool(self.pipeline)  # requests that the client sent ahead
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._close_without_head)

    def _cancel(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _close_without_head(self) -> None:
        if not self._has_head and not self.transport.is_closing():
            self.transport.close()


def require_certificate(settings: ServerSettings) -> None:
    """Raise UserError unless the server can use its certificate with its key, or has none."""
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    if not certificate:
        if key:
            raise UserError("--ssl-keyfile needs --ssl-certfile: give the certificate of the key")
        return
    for flag, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        try:
            if path:
                os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise UserError(f"{flag} {path} cannot be read ({error.strerror}): give a PEM file") from None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            certificate, key or None, lambda: _password(key or certificate)
        )
    except OSError as error:  # ssl.SSLError is one
        raise UserError(f"{certificate} and its key cannot be used ({_reason(error)}): {_CURE}") from None


_CURE = "give a certificate and its own key as PEM files, --ssl-certfile and --ssl-keyfile"


def _password(path: str) -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise UserError(f"the key in {path} has a password: `openssl rsa -in {path} -out FILE` takes it away")


def _reason(error: OSError) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return "no certificate or no key is in them" if isinstance(error, ssl.SSLError) else str(error.strerror)


_LOG: Final = logging.getLogger("tiny_llm.server")
_LAST_WORDS_S: Final = 5  # for clients to read how their requests ended


class Service(Protocol):
    """What a server serves."""

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""

    async def stop(self, drain_s: float) -> int:
        """Refuse new requests, serve the others up to `drain_s` seconds and end the rest; how many."""


# An application, what it serves, and what to say at its start about an address.
Started = tuple[ASGIApp, Service, Callable[[str], str]]


async def run_server(start: Callable[[], Awaitable[ServedModel]], settings: ServerSettings) -> None:
    """Serve one model; `start` loads it. Otherwise as `run_service`; also raises what `start` raises."""

    async def started() -> Started:
        served = await start()

        async def same() -> ServedModel:
            return served

        return create_app(same, settings), served.engine, partial(startup_line, served)

    await run_service(started, settings)


async def run_service(start: Callable[[], Awaitable[Started]], settings: ServerSettings) -> None:
    """Serve an application until SIGINT or SIGTERM; a second signal ends the process at once.

    Raises UserError for an address or a certificate that cannot be used.
    """
    require_certificate(settings)
    allow_connections()
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        app, service, line = await start()
        gc.freeze()  # or streams wait 50 ms now and then while all of this is looked at
        server = _Server(_config(app, settings))
        with _signals(lambda: _drain(service, server, settings.drain_s)):
            _LOG.info(line(address(settings, sock.getsockname()[1])))
            await server.serve(sockets=[sock])
    _LOG.info("stopped")


def configure_logging(enable_log_requests: bool) -> None:
    """Lines on stderr: ours, and one for each request if asked for."""
    talk.configure_logging()
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


async def _drain(service: Service, server: uvicorn.Server, drain_s: float) -> None:
    """Refuse new requests while the others finish, then close; /health tells a load balancer meanwhile."""
    num_running = service.num_requests
    _LOG.info(f"stopping: {talk.plural(num_running, 'request')} may take up to {drain_s:g} s to finish")
    num_lost = await service.stop(drain_s)
    if num_lost:
        _LOG.warning(f"{talk.plural(num_lost, 'request')} did not finish in time and were ended")
    server.should_exit = True


@contextlib.contextmanager
def _signals(drain: Callable[[], Awaitable[None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Future[None]] = []

    def handle(number: signal.Signals) -> None:
        if begun:
            print("ended at once", file=sys.stderr, flush=True)
            os._exit(128 + number)  # a step may take long; the engine ends when we do
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
_FEWER_FILES: Final = 10_240  # that every Mac has for a process


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
        if sys.platform == "darwin" and is_served(family, address):
            raise OSError(errno.EADDRINUSE, "in use")
        sock.bind(address)
        sock.listen(_BACKLOG)  # listen now, because only this detects another program on the port
    except OSError as error:
        sock.close()
        raise UserError(_complaint(error, host, port)) from None
    return sock


def is_served(family: socket.AddressFamily, address: tuple[Any, ...]) -> bool:
    """Whether somebody takes connections there.

    macOS lets two programs listen on a port, one at all addresses and one at one of them.
    """
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(1)
        return address[1] != 0 and sock.connect_ex(address) == 0


def allow_connections() -> None:
    """Let this process have as many connections open as the system allows it, _FILES at most.

    The usual limits, 256 and 1024, are below what the queue of a server takes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        for files in (most, max(soft, min(most, _FEWER_FILES))):  # some systems allow less than they say
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
                return


def _complaint(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use: stop the program that uses it, or choose another --port"
        case errno.EACCES:
            return f"this user may not listen on port {port}: choose a --port above 1023"
    return f"cannot listen on {host} port {port} ({error.strerror}): choose another --host or --port"


def address(settings: ServerSettings, port: int) -> str:
    """Where the server is, and who can reach it."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    who = "this machine only" if settings.is_loopback else "other machines too"
    open_to = "" if settings.keys or settings.is_loopback else ", without a key"
    return f"{settings.scheme}://{host}:{port} ({who}{open_to})"


def startup_line(served: ServedModel, address: str) -> str:
    """The model, the address and the engine's settings."""
    facts, config = served.facts, served.facts.config
    chunked = "on" if config.enable_chunked_prefill else "off"
    memory = readable(facts.num_blocks * facts.block_bytes)
    per_token = readable(facts.block_bytes // facts.block_size)
    longest = served.max_num_tokens
    num_fit = facts.num_blocks // -(-longest // facts.block_size)
    states = f"{readable(facts.model.state_bytes)} a sequence, {per_token} a token"
    return " · ".join(
        [
            f"tiny-llm serves {', '.join(served.names)} on {address}",
            f"chunked prefill is {chunked}, {config.max_num_batched_tokens:,} tokens a step",
            f"{facts.num_blocks:,} KV blocks of {facts.block_size} tokens ({memory})",
            f"{config.max_num_seqs} requests at a time, {longest:,} tokens each, of which {num_fit:,} fit",
            *([f"{facts.num_states} states, {states}"] if facts.num_states else []),
            f"prefix cache is {'on' if facts.has_prefix_cache else 'off'}",
            *([f"kernels {facts.kernels}"] if facts.kernels else []),
            *([f"{served.num_ranks} processes"] if served.num_ranks > 1 else []),
            *(["activations of 8 bits"] if facts.activation_bits == 8 else []),
        ]
    )
