"""The HTTP application: a router for each subject, around one served model."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from tiny_llm_lab.serving.server.errors import ERROR_RESPONSES, add_error_handlers
from tiny_llm_lab.serving.server.guard import Guard
from tiny_llm_lab.serving.server.routes import (
    chat,
    completions,
    live,
    messages,
    metrics,
    models,
    page,
    responses,
    tokenize,
)
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.serving.server.settings import ServerSettings

_ROUTES = (models, chat, completions, responses, messages, tokenize, metrics, live, page)


def create_app(
    start: Callable[[], Awaitable[ServedModel]], settings: ServerSettings | None = None
) -> FastAPI:
    """The application. It awaits `start` before the first request, and stops the engine after the last."""
    settings = settings or ServerSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served = app.state.served = await start()
        yield
        await served.engine.stop(settings.drain_s)

    # FastAPI's own documentation pages load their scripts from another host.
    app = FastAPI(title="tiny-llm", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.pages = live.Pages()
    app.state.logs_stats = not settings.disable_log_stats
    add_error_handlers(app)
    app.add_middleware(Guard, settings=settings)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    for routes in _ROUTES:
        app.include_router(routes.router, responses=ERROR_RESPONSES)
    return app
