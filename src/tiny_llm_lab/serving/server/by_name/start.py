"""From flags to an application of several models."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from starlette.types import ASGIApp

from tiny_llm_lab.serving.async_engine.model import in_process
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.app import create_app, middleware
from tiny_llm_lab.serving.server.by_name.named_model import NamedModel
from tiny_llm_lab.serving.server.by_name.router import ModelRouter
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.served_model import start_model
from tiny_llm_lab.serving.server.settings import ChatSettings, RequestLimits, ServerSettings


async def serve_by_name(
    models: Mapping[str, ModelSettings],
    server: ServerSettings,
    limits: RequestLimits,
    chat: ChatSettings,
    has_controls: bool,
) -> tuple[ASGIApp, ModelRouter]:
    """The guarded application of `models`, by name, and what stops it; nothing is loaded."""
    unhurried = replace(server, drain_s=0.0)  # the router drains

    def app_of(name: str, settings: ModelSettings) -> FastAPI:
        start = partial(start_model, settings, (name,), limits, chat, LiveView(has_controls), in_process)
        return create_app(start, unhurried, is_guarded=False)

    loading = asyncio.Lock()
    named = [NamedModel(name, app_of(name, settings), loading) for name, settings in models.items()]
    router = ModelRouter(named, limits.keep_alive_s, server.idle_unload)
    router.watch()
    app: ASGIApp = router
    for cls, args, kwargs in reversed(middleware(server)):
        app = cls(app, *args, **kwargs)
    return app, router
