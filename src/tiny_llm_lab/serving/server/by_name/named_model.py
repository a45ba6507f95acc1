"""A model with a name, which is loaded at its first request and unloaded when nobody uses it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from fastapi import FastAPI

from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.types import Clock

State = Literal["unloaded", "loading", "loaded"]


class NamedModel:
    """An application around one model, whose lifespan loads and unloads the model."""

    def __init__(self, name: str, app: FastAPI, loading: asyncio.Lock, clock: Clock = time.monotonic) -> None:
        """Nothing is loaded. `loading` is held while one of several models is loaded or unloaded: two could
        count on the same memory. Sets name, app, num_users = 0 and last_used_s on `clock`.
        """
        self.name, self.app, self.num_users, self.last_used_s = name, app, 0, clock()
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
    def served(self) -> ServedModel | None:
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
