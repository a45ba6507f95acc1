"""What a request must pass before a route sees it: the API key, and the limits on its body."""

import asyncio
import hmac
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

_BODY_TIMEOUT_S: Final = 60.0
# What is left of a body that was refused is read and forgotten up to here, so that the client can read why.
_LONGEST_FORGOTTEN: Final = 64 * 2**20


class Guard:
    """Refuses requests without the key, and bodies that are too large or do not come."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], max_body_size: int) -> None:
        """A key is asked for on /v1, and for whatever is not read with GET; no keys ask for none."""
        self._app, self._keys, self._max_size = app, [key.encode() for key in api_keys], max_body_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._require_key(scope, headers.get(b"authorization", b""))
            body = await self._body(headers.get(b"content-length", b""), receive)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        except _GoneError:
            return
        sent = False

        async def read_again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, read_again, send)

    def _require_key(self, scope: Scope, authorization: bytes) -> None:
        is_open = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/v1")
        if not self._keys or is_open or scope["method"] == "OPTIONS":
            return
        kind, _, given = authorization.partition(b" ")
        # Every key is compared, and as a whole: how long it takes tells nothing about them.
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if kind.lower() != b"bearer" or not any(matches):
            message = "this server asks for an API key: send Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    async def _body(self, declared: bytes, receive: Receive) -> bytes:
        size = int(declared) if declared.isdigit() and len(declared) < 20 else None
        if size is not None and size > self._max_size:
            raise self._too_large(size <= _LONGEST_FORGOTTEN)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await self._read(receive)
        except TimeoutError:
            message = f"the body did not come within {_BODY_TIMEOUT_S:g} s: send it again"
            raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            if len(body) > self._max_size:
                raise self._too_large(False)
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self, is_kept: bool) -> ApiError:
        message = f"the body has more than {self._max_size} bytes: send less, or raise --max-body-size"
        return ApiError(
            413, message, code="body_too_large", headers={} if is_kept else {"Connection": "close"}
        )


class _GoneError(Exception):
    """The client left before its request was complete."""
