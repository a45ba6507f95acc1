"""Sends each request to the model that its body names."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, Self

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiny_llm_lab.runtime.console.input_file import json_object
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.runtime.memory import NotEnoughMemoryError, give_back
from tiny_llm_lab.serving.async_engine.messages import EngineStoppedError
from tiny_llm_lab.serving.async_engine.model import in_process
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server import api
from tiny_llm_lab.serving.server.answering.event_stream import HEADERS, PING, error_event
from tiny_llm_lab.serving.server.app import create_app, middleware
from tiny_llm_lab.serving.server.guard import read_again
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.routes.metrics import exposition
from tiny_llm_lab.serving.server.settings import ChatSettings, RequestLimits, ServerSettings
from tiny_llm_lab.types import Clock, UserError

_HEAD: Final = {"content-type": "text/event-stream; charset=utf-8", **HEADERS}
_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(name.lower().encode(), value.encode()) for name, value in _HEAD.items()],
}


class LoadingStream:
    """Sends comments until the application answers. If that is an error, it becomes the last event."""

    def __init__(self, send: Send, path: str, keep_alive_s: float) -> None:
        self._send, self._path, self._keep_alive_s = send, path, keep_alive_s
        self._has_begun = False  # with a head of ours
        self._is_error = False
        self._kept: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._kept = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._answered()

    async def send(self, message: Message) -> None:
        """What the application sends with."""
        await self._answered()
        if not self._has_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_error = message["status"] != 200
        elif self._is_error:
            await self._send({**message, "body": error_event(message["body"], self._path)})
        else:
            await self._send(message)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._keep_alive_s)
            if not self._has_begun:
                self._has_begun = True
                await self._send(_START)
            await self._send({"type": "http.response.body", "body": PING, "more_body": True})

    async def _answered(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kept


State = Literal["unloaded", "loading", "loaded"]


class NamedModel:
    """An application around one model, whose lifespan loads and unloads the model."""

    def __init__(
        self,
        name: str,
        app: FastAPI,
        loading: asyncio.Lock,
        clock: Clock = time.monotonic,
        is_pinned: bool = False,
    ) -> None:
        """Nothing is loaded. `loading` is held while one of several models is loaded or unloaded: two could
        count on the same memory. Sets name, app, num_users = 0, last_used_s on `clock`, and is_pinned:
        whether the model stays once it is loaded.
        """
        self.name, self.app, self.num_users, self.last_used_s = name, app, 0, clock()
        self.is_pinned = is_pinned
        self.created_s = int(time.time())
        self._loading, self._clock = loading, clock
        self._is_loaded = False
        self._life = contextlib.AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        if self._is_loaded:
            return "loaded"
        return "unloaded" if self._starting is None else "loading"

    @property
    def may_leave(self) -> bool:
        """Whether it is loaded, and nobody needs it."""
        return self._is_loaded and not self.num_users and not self.is_pinned

    @property
    def served(self) -> api.ServedModel | None:
        """The model, while it is loaded."""
        return self.app.state.served if self._is_loaded else None

    @property
    def idle_s(self) -> float:
        """Seconds since it was last used."""
        return self._clock() - self.last_used_s

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """It is loaded, and not unloaded before the end. Raises what loading raises."""
        self.num_users += 1
        try:
            if not self._is_loaded:
                self._starting = self._starting or asyncio.create_task(self._start())
                # One client that leaves must not stop the loading that others wait for.
                await asyncio.shield(self._starting)
            yield
        finally:
            self.num_users -= 1
            self.last_used_s = self._clock()

    async def _start(self) -> None:
        try:
            async with self._loading:
                await self._life.enter_async_context(self.app.router.lifespan_context(self.app))
            self._is_loaded = True
        finally:
            self._starting = None

    async def unload(self) -> None:
        """End what still runs, and give the memory back."""
        if self._starting is not None:
            self._starting.cancel()
        self._is_loaded = False
        async with self._loading:
            await self._life.aclose()
            await asyncio.to_thread(give_back)


_LOG: Final = logging.getLogger("tiny_llm.server")
_RETRY_S: Final = 10
_CHECK_S: Final = 1.0
_OWN: Final = ("/health", "/ping", "/metrics", "/models", "/v1/models")
_CONTROLS: Final = ("/models/load", "/models/unload")  # as llama.cpp's router has them


class ModelRouter:
    """An ASGI application in front of one application for each model.

    A request without a model's name, or with one of Anthropic's that none has, gets the first model.
    """

    def __init__(self, models: Sequence[NamedModel], keep_alive_s: float, idle_unload_s: float) -> None:
        """`keep_alive_s` as in `RequestLimits`. With idle_unload_s 0 only want of memory unloads a model."""
        self._models = {each.name: each for each in models}
        self._keep_alive_s, self._idle_unload_s = keep_alive_s, idle_unload_s
        self._is_stopping = False
        self._room = asyncio.Lock()  # held while room is made: others may have waited for the same
        self._watch: asyncio.Task[None] | None = None

    @property
    def num_requests(self) -> int:
        """Requests that have not been answered."""
        return sum(each.num_users for each in self._models.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if self._is_stopping:
                raise api.ApiError(503, "the server is stopping and takes no more requests", api.SERVER)
            if scope["method"] != "POST":
                await self._read(path)(scope, receive, send)
                return
            first = await receive()
            # If it is wrong, the model's application says so.
            body = json_object(first.get("body", b"")) or {}
            if path in _CONTROLS:
                await self._control(path, body)
                await api.json_response({"success": True})(scope, receive, send)
                return
            await self._pass_on(body, scope, read_again(first, receive), send)
        except (api.ApiError, EngineStoppedError) as error:
            await api.as_api_error(error).response(path)(scope, receive, send)

    async def _pass_on(self, body: Mapping[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        model = self._named(body.get("model"), api.is_anthropic(scope["path"]))
        if not any(route.matches(scope)[0] is Match.FULL for route in model.app.routes):
            await model.app(scope, receive, send)  # it says so, and needs no model
            return
        waits = model.state != "loaded" and body.get("stream") is True and self._keep_alive_s > 0
        if not waits:
            await self._answer(model, scope, receive, send)
            return
        async with LoadingStream(send, scope["path"], self._keep_alive_s) as stream:
            try:
                await self._answer(model, scope, receive, stream.send)
            except api.ApiError as error:
                await error.response(scope["path"])(scope, receive, stream.send)

    async def _control(self, path: str, body: Mapping[str, Any]) -> None:
        """Load the model that the body names, and with "pinned": true keep it; or unload it."""
        is_pinned = body.get("pinned", False)
        if not isinstance(body.get("model"), str) or not isinstance(is_pinned, bool):
            raise api.ApiError(400, 'send {"model": NAME}, to keep it with "pinned": true', param="model")
        model = self._named(body["model"])
        if path == "/models/load":
            async with self._loaded(model):
                model.is_pinned = model.is_pinned or is_pinned
            return
        if model.num_users:
            many = plural(model.num_users, "request")
            message = f"the model {model.name!r} answers {many}: try again later"
            raise api.ApiError(409, message, param="model", code="model_in_use")
        model.is_pinned = False
        await model.unload()

    async def _answer(self, model: NamedModel, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._loaded(model):
            await model.app(scope, receive, send)

    @asynccontextmanager
    async def _loaded(self, model: NamedModel) -> AsyncIterator[None]:
        """A model is loaded, and not unloaded before the end of the block; others make room for it."""
        async with AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(model.used())
                    break
                except NotEnoughMemoryError as error:
                    async with self._room:
                        if model.state == "unloaded" and not await self._unload_one(besides=model):
                            raise _unloadable(model, error) from None
                except Exception as error:
                    raise _unloadable(model, error) from error
            yield

    def _named(self, name: object, is_anthropic: bool = False) -> NamedModel:
        """A model by its name; the first for a name of Anthropic's that none has, on a route of theirs."""
        if isinstance(name, str) and name in self._models:
            return self._models[name]
        if name is None or (is_anthropic and isinstance(name, str) and name.startswith("claude")):
            return next(iter(self._models.values()))
        raise api.unknown_model(name, self._models)

    def _read(self, path: str) -> ASGIApp:
        """What answers a request that reads; nothing is loaded for it."""
        loaded = [each for each in self._models.values() if each.state == "loaded"]
        if path.startswith("/live") and not loaded:
            raise api.ApiError(503, "no model is loaded yet: send a request first", api.SERVER)
        if not path.startswith(_OWN):
            return next(iter([*loaded, *self._models.values()])).app
        if path == "/metrics":
            pages = {name: each.served.metrics for name, each in self._models.items() if each.served}
            return Response(exposition(pages), media_type=CONTENT_TYPE_PLAIN_0_0_4)
        path = path.removeprefix("/v1")
        if not path.startswith("/models"):
            for each in loaded:
                each.app.state.served.engine.require_ready()
            states = {name: each.state for name, each in self._models.items()}
            return api.json_response({"status": "ok", "models": states})
        if name := path.removeprefix("/models").lstrip("/"):
            return api.json_response(_card(self._named(name)))
        return api.json_response({"object": "list", "data": [_card(each) for each in self._models.values()]})

    async def _unload_one(self, besides: NamedModel) -> bool:
        """Unload whichever nobody has used for the longest time; False if all are in use or pinned."""
        idle = [each for each in self._models.values() if each.may_leave and each is not besides]
        oldest = min(idle, key=lambda model: model.last_used_s, default=None)
        if oldest is None:
            return False
        _LOG.info("%s is unloaded to make room for %s", oldest.name, besides.name)
        await oldest.unload()
        return True

    def watch(self) -> None:
        """Begin to load what is pinned, and to unload what nobody has used for idle_unload_s."""
        self._watch = asyncio.create_task(self._keep_watch())

    async def _keep_watch(self) -> None:
        for pinned in [each for each in self._models.values() if each.is_pinned]:
            with contextlib.suppress(api.ApiError):  # the log says why; who asks for it is told too
                async with self._loaded(pinned):
                    pass
        if self._idle_unload_s:
            await self._unload_idle()

    async def _unload_idle(self) -> None:
        while not self._is_stopping:
            await asyncio.sleep(min(_CHECK_S, self._idle_unload_s / 4))
            for each in self._models.values():
                if each.may_leave and each.idle_s >= self._idle_unload_s:
                    _LOG.info("%s is unloaded: idle for %g s", each.name, self._idle_unload_s)
                    await each.unload()

    async def stop(self, drain_s: float) -> int:
        """Refuse new requests, give the others `drain_s` seconds, unload; how many did not end in time."""
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
        end_s = asyncio.get_running_loop().time() + drain_s
        while self.num_requests and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.02)
        num_lost = self.num_requests
        await asyncio.gather(*(each.unload() for each in self._models.values()))
        return num_lost

    def line(self, address: str) -> str:
        """What the server says at its start."""
        many = plural(len(self._models), "model")
        return f"tiny-llm serves {', '.join(self._models)} on {address} · {many}, loaded at the first request"


def _unloadable(model: NamedModel, error: Exception) -> api.ApiError:
    _LOG.error("%s cannot be loaded", model.name, exc_info=None if isinstance(error, UserError) else error)
    reason = str(error) if isinstance(error, UserError) else "the server's log says why"
    message = f"the model {model.name!r} cannot be loaded: {reason}"
    headers = {"Retry-After": str(_RETRY_S)}
    return api.ApiError(503, message, api.SERVER, "model", "model_not_loaded", headers)


def _card(model: NamedModel) -> Mapping[str, object]:
    longest = {} if model.served is None else {"max_model_len": model.served.max_num_tokens}
    states = {"state": model.state, "status": {"value": model.state}, "pinned": model.is_pinned}
    return api.model_card(model.name, model.name, model.created_s, **states, **longest)


@dataclass(frozen=True)
class NamedSettings:
    """How one of several models is loaded and answers."""

    model: ModelSettings
    limits: RequestLimits
    chat: ChatSettings
    is_pinned: bool = False


async def serve_by_name(
    models: Mapping[str, NamedSettings], server: ServerSettings, keep_alive_s: float
) -> tuple[ASGIApp, ModelRouter, Callable[[str], str]]:
    """The guarded application of `models`, by name, what stops it, and its first line; nothing is loaded."""
    unhurried = replace(server, drain_s=0.0)  # the router drains

    def app_of(name: str, own: NamedSettings) -> FastAPI:
        live = LiveView(server.has_live_controls and own.model.engine.itl_slo_ms is None)
        start = partial(api.start_model, own.model, (name,), own.limits, own.chat, live, in_process)
        return create_app(start, unhurried, is_guarded=False)

    loading = asyncio.Lock()
    apps = {name: app_of(name, own) for name, own in models.items()}
    named = [NamedModel(name, app, loading, is_pinned=models[name].is_pinned) for name, app in apps.items()]
    router = ModelRouter(named, keep_alive_s, server.idle_unload)
    router.watch()
    app: ASGIApp = router
    for cls, args, kwargs in reversed(middleware(server)):
        app = cls(app, *args, **kwargs)
    return app, router, router.line
