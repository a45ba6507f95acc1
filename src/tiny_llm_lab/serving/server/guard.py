"""Checks a request before a route sees it: its key or its site, and the limits on its body."""

import asyncio
import contextlib
import hmac
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiny_llm_lab.serving.server.api import CLASS_HEADER, ApiError
from tiny_llm_lab.serving.server.settings import ServerSettings


@dataclass(frozen=True)
class Sites:
    """Refuses what another site's page makes a browser send, across sites or by a name of its own for us."""

    hosts: frozenset[str]  # without ports
    origins: frozenset[str]

    @classmethod
    def of(cls, settings: ServerSettings) -> Self | None:
        """None if everyone may send requests, or a key decides who may."""
        if not settings.is_loopback or settings.keys or "*" in settings.allowed_hosts:
            return None
        names = ("localhost", "127.0.0.1", "[::1]", settings.host, *settings.allowed_hosts)
        return cls(frozenset(map(str.lower, names)), frozenset(settings.allowed_origins))

    def require(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise ApiError 403. Programs other than browsers may leave out these headers."""
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if host and _name(host) not in self.hosts:
            raise _forbidden(f"this server is not {host}", f"--allowed-hosts {_name(host)}")
        is_known = _name(origin.partition("://")[2]) in self.hosts or {origin, "*"} & self.origins
        is_read = method in ("GET", "HEAD", "OPTIONS")
        # Browsers say of a read, too, which page made it: a link to here is fine, a read in silence is not.
        site, use = (headers.get(name) for name in (b"sec-fetch-site", b"sec-fetch-dest"))
        is_silent = site == b"cross-site" and use != b"document"
        if not is_known and (is_silent or (origin and not is_read)):
            complaint = f"pages from {origin or 'another site'} may not send requests here"
            raise _forbidden(complaint, f"--allowed-origins {origin or 'ORIGIN'}")


def _name(address: str) -> str:
    return re.sub(r":\d*$", "", address).lower()


def _forbidden(complaint: str, flag: str) -> ApiError:
    return ApiError(403, f"{complaint}: start the server with {flag}, or with --api-key", code="forbidden")


_OPEN: Final = ("/", "/docs", "/openapi.json", "/health", "/ping", "/version")
_BODY_TIMEOUT_S: Final = 60.0
# We read the rest of a refused body up to this size and drop it. If we closed with bytes unread, the
# connection would be reset and the client could not read the error.
_LONGEST_FORGOTTEN: Final = 64 * 2**20
_FORGET_TIMEOUT_S: Final = 10.0
_LONGEST_ID: Final = 128
# Reading JSON holds up every stream. After a large body we leave as long for them as it takes.
_LARGE_BODY: Final = 2**16
_LARGE_BYTES_PER_S: Final = 10e6


class Guard:
    """Refuses requests without the key or from other sites, and bodies that are not JSON, too large or late.

    HEAD is answered like GET, without the body.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        """A key is asked for by whatever tells of models, requests or traffic; no keys ask for none."""
        self._app, self._keys = app, [key.encode() for key in settings.keys]
        self._background = [key.encode() for key in settings.background_key]
        self._settings, self._sites = settings, Sites.of(settings)
        self._turns = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        send = _with_id(send, headers.get(b"x-request-id", b""))
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _head_only(send)
        await self._checked(scope, receive, send, headers)

    async def _checked(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]
    ) -> None:
        is_read = False

        async def watched() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        try:
            key = self._require_allowed(scope, headers)
            body = await self._body(headers.get(b"content-length", b""), watched, self._most_bytes(scope))
            if body and scope["method"] == "POST":
                _require_json(headers)
            await self._turn(len(body))
        except ApiError as error:
            response = error.response(scope["path"])
            head = {"status": response.status_code, "headers": response.raw_headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": response.body, "more_body": True})
            if error.status != 408 and not is_read:
                await _forget(receive)
            await send({"type": "http.response.body", "body": b""})
            return
        except _GoneError:
            return
        if key in self._background:  # as a proxy would say it, and before the client's own word
            scope = {**scope, "headers": [(CLASS_HEADER.encode(), b"batch"), *scope["headers"]]}
        read = {"type": "http.request", "body": body, "more_body": False}
        await self._app(scope, read_again(read, receive), send)

    def _require_allowed(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bytes:
        """The key of the request, b"" if it needs none."""
        if self._sites is not None:
            self._sites.require(scope["method"], headers)
        if not self._keys or scope["method"] == "OPTIONS" or _is_open(scope["method"], scope["path"]):
            return b""
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if b"x-api-key" in headers:  # Anthropic's clients
            kind, given = b"bearer", headers[b"x-api-key"]
        # We compare with every key, and all of it, so that the time says nothing about the keys.
        matches = [key for key in self._keys if hmac.compare_digest(given.strip(), key)]
        if kind.lower() != b"bearer" or not matches:
            message = "this server asks for an API key: send Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return matches[0]

    def _most_bytes(self, scope: Scope) -> int:
        """Of a body; of a model that reads pictures, or may, more."""
        served = getattr(scope["app"].state, "served", None) if "app" in scope else None
        return self._settings.most_bytes(served is None or served.processor is not None)

    async def _turn(self, size: int) -> None:
        if size > _LARGE_BODY:
            await self._turns.acquire()
            asyncio.get_running_loop().call_later(size / _LARGE_BYTES_PER_S, self._turns.release)

    async def _body(self, declared: bytes, receive: Receive, most: int) -> bytes:
        size = int(declared) if declared.isdigit() and len(declared) < 20 else None
        if size is not None and size > most:
            raise _too_large(most, size <= _LONGEST_FORGOTTEN)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await _read(receive, most)
        except TimeoutError:
            message = f"the body did not arrive within {_BODY_TIMEOUT_S:g} s: send it again"
            raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None


def read_again(first: Message, receive: Receive) -> Receive:
    """Gives `first`, which was read from `receive`, and then what follows it."""
    read = iter([first])

    async def receive_again() -> Message:
        return next(read, None) or await receive()

    return receive_again


async def _read(receive: Receive, most: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(most, False)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(most: int, is_kept: bool) -> ApiError:
    message = f"the body has more than {most} bytes: send less, or raise --max-body-size"
    headers = {} if is_kept else {"Connection": "close"}
    return ApiError(413, message, code="body_too_large", headers=headers)


def _is_open(method: str, path: str) -> bool:
    """Whether everyone may ask: for the server's health, and for files that are the same on every server."""
    return method == "GET" and (path in _OPEN or path.startswith("/page/"))


def _require_json(headers: Mapping[bytes, bytes]) -> None:
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if coding not in ("", "identity"):
        message = f"Content-Encoding {coding} is not supported: send the body as it is"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})
    media = headers.get(b"content-type", b"").decode("latin-1")
    # Another site's page can post any other type without asking first.
    if media.partition(";")[0].strip().lower() != "application/json":
        message = f"the body must be JSON, not {media or 'untyped'}: set Content-Type: application/json"
        raise ApiError(415, message)


def _with_id(send: Send, given: bytes) -> Send:
    """Every answer has an id that a log can name: the client's own, if it is short."""
    own = given if 0 < len(given) <= _LONGEST_ID else f"req_{uuid.uuid4().hex}".encode()

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", own)]}
        await send(message)

    return send_with_id


def _head_only(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})  # then a stream reads that it may end

    return send_head


async def _forget(receive: Receive) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FORGET_TIMEOUT_S):
            while size <= _LONGEST_FORGOTTEN:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class _GoneError(Exception):
    """The client left before its request was complete."""
