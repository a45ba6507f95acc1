"""The HTTP application: a router for each subject, around one served model."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from tiny_llm_lab.serving.server.api import ERROR_RESPONSES, ServedModel, add_error_handlers
from tiny_llm_lab.serving.server.guard import Guard
from tiny_llm_lab.serving.server.routes import (
    completions,
    live,
    messages,
    metrics,
    models,
    page,
    pooling,
    responses,
    tokenize,
)
from tiny_llm_lab.serving.server.settings import ServerSettings


def create_app(
    start: Callable[[], Awaitable[ServedModel]],
    settings: ServerSettings | None = None,
    is_guarded: bool = True,
) -> FastAPI:
    """The application. It awaits `start` before the first request, and stops the engine after the last.

    One that is not guarded checks neither keys nor sites nor sizes: another application does it.
    """
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served = app.state.served = await start()
        yield
        await served.engine.stop(settings.drain_s)
        del app.state.served  # its tokenizer is large

    # FastAPI's own documentation pages load their scripts from another host.
    app = FastAPI(
        title="tiny-llm",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=middleware(settings) if is_guarded else [],
    )
    app.state.pages = live.Pages()
    app.state.logs_stats = not settings.disable_log_stats
    add_error_handlers(app)
    for routes in (models, completions, responses, messages, pooling, tokenize, metrics, live, page):
        app.include_router(routes.router, responses=ERROR_RESPONSES)
    return app


def middleware(settings: ServerSettings) -> list[Middleware]:
    """What a request passes before it reaches an application, the outermost first."""
    guard = Middleware(Guard, settings=settings)
    if not settings.allowed_origins:
        return [guard]
    origins, every = settings.allowed_origins, ["*"]
    cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=every, allow_headers=every)
    return [cors, guard]
