"""The application on Ray Serve: an ingress that chooses replicas, and replicas with an engine each.

Needs Ray; only `command.py` imports this module, when it runs.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiny_llm_lab.serving.ray_cluster.asgi_call import HttpRequest, ResponseHead, call_app
from tiny_llm_lab.serving.ray_cluster.command import ReplicaSettings
from tiny_llm_lab.serving.ray_cluster.replica_choice import prefix_key, rank_replicas
from tiny_llm_lab.serving.server.api import INVALID, SERVER, ApiError


class PrefixRouter(RequestRouter):
    """Sends prompts with the same beginning to the same replica."""

    def initialize_state(self, by_prefix: bool = True) -> None:
        self._by_prefix = by_prefix

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Gives every candidate its own rank, so that Ray takes the next one only when one is full."""
        request = pending_request.args[0] if pending_request and pending_request.args else None
        key = request.prefix_key if self._by_prefix and isinstance(request, HttpRequest) else None
        results = {str(each.replica_id): each for each in candidate_replicas}
        lens = {
            name: self.replica_queue_len_cache.get(each.replica_id) or 0 for name, each in results.items()
        }
        return [[results[name]] for name in rank_replicas(key, lens)]


APP_NAME: Final = "tiny-llm"
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_ATTEMPTS: Final = 4
# They belong to the connection, and the proxy writes its own.
_OF_CONNECTION: Final = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length")


class Replica:
    """One engine behind the server's application."""

    async def __init__(self, make_app: Callable[[], FastAPI]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._app = make_app()
        self._life = self._app.router.lifespan_context(self._app)
        await self._life.__aenter__()

    async def answer(self, request: HttpRequest) -> AsyncIterator[ResponseHead | bytes]:
        """The answer in pieces, its head first; a caller that cancels aborts the request in the engine."""
        async with aclosing(call_app(self._app, request)) as pieces:
            async for piece in pieces:
                yield piece

    async def check_health(self) -> None:
        """Raises RuntimeError when the engine takes no requests: Ray then replaces the replica."""
        if not self._app.state.served.engine.is_ready:
            raise RuntimeError("the engine takes no requests")

    async def __del__(self) -> None:
        """Ray awaits this before it ends the process, when the replica's requests have been answered."""
        await self._life.__aexit__(None, None, None)


class Ingress:
    """Reads a request, and passes on a replica's answer."""

    def __init__(self, replicas: Any, max_body_size: int) -> None:
        self._max_body_size = max_body_size
        self._replicas = replicas.options(stream=True)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application behind Ray's HTTP proxy; /docs and the rest come from the replicas."""
        app = Starlette(routes=[Route("/{path:path}", self.forward, methods=_METHODS)])

        async def tidy(scope: Scope, receive: Receive, send: Send) -> None:
            async def receive_or_end() -> Message:
                try:
                    return await receive()
                except TaskCancelledError:  # Ray's sign that the client has gone
                    return {"type": "http.disconnect"}

            await app(scope, receive_or_end, send)

        return tidy

    async def forward(self, request: Request) -> Response:
        body = await _read(request, self._max_body_size)
        if body is None:
            return _error(413, f"the body is longer than {self._max_body_size} bytes")
        asked = HttpRequest(
            method=request.method,
            path=request.url.path,
            query=request.url.query.encode(),
            headers=tuple(request.headers.raw),
            body=body,
            client=None if request.client is None else (request.client.host, request.client.port),
            prefix_key=prefix_key(body),
        )
        for _ in range(_ATTEMPTS):
            pieces = self._replicas.answer.remote(asked)
            try:
                head = await anext(pieces)
                first = await anext(pieces, b"")
            except BackPressureError:
                return _error(429, "all replicas are busy: try again in a second")
            except RayActorError:
                continue  # it died before it sent a byte of the answer, so another one can answer
            except BaseException:
                pieces.cancel()
                raise
            headers = {
                key.decode(): value.decode() for key, value in head.headers if key not in _OF_CONNECTION
            }
            return StreamingResponse(_rest(first, pieces), head.status, headers)
        return _error(503, "the replicas with this request died: try again")


async def _rest(first: bytes, pieces: Any) -> AsyncIterator[bytes]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        pieces.cancel()  # does nothing if the answer has ended


async def _read(request: Request, most: int) -> bytes | None:
    """The body; None if it is too long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            return None
    return bytes(body)


def _error(status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return ApiError(status, message, SERVER if status >= 500 else INVALID, headers=headers).response()


def bound_application(make_app: Callable[[], FastAPI], settings: ReplicaSettings) -> Any:
    """What `serve.run` deploys."""
    router = RequestRouterConfig(
        request_router_class=PrefixRouter, request_router_kwargs={"by_prefix": settings.by_prefix}
    )
    replicas = serve.deployment(Replica).options(
        **settings.deployment_options(), request_router_config=router
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=settings.num_ingress,
        max_ongoing_requests=settings.max_queued_requests + settings.max_running,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.drain_s,
    )
    return ingress.bind(replicas.bind(make_app), settings.max_body_size)
