"""The HTTP application: one router a subject, around one served model."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from .errors import add_error_handlers
from .routes import completions, models
from .served_model import ServedModel


def create_app(start: Callable[[], Awaitable[ServedModel]], drain_s: float = 30.0) -> FastAPI:
    """The application; `start` is awaited before the first request, and the engine stopped after the last."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served = app.state.served = await start()
        yield
        await served.engine.stop(drain_s)

    app = FastAPI(title="tiny-llm", lifespan=lifespan)
    add_error_handlers(app)
    for routes in (completions, models):
        app.include_router(routes.router)
    return app
