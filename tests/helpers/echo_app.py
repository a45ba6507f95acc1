"""An application that answers completions with their own prompt, to test batches and clusters with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse


class EchoApp(FastAPI):
    """Counts what is asked. A prompt says what comes: "bad" 400, "gone" 503, "busy" once 429, "one" an id."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__(lifespan=self._life)
        self.delay_s = delay_s
        self.prompts: list[str] = []
        self.num_running = self.most_running = self.num_cancelled = 0
        self.life: list[str] = []
        self.add_api_route("/v1/completions", self._complete, methods=["POST"])
        self.add_api_route("/stream", self._stream)

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        self.life.append("started")
        yield
        self.life.append("stopped")

    async def _complete(self, request: Request) -> JSONResponse:
        body: dict[str, Any] = await request.json()
        prompt = str(body["prompt"])
        self.prompts.append(prompt)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(self.delay_s)
        self.num_running -= 1
        status = {"bad": 400, "gone": 503}.get(prompt, 200)
        if prompt == "busy" and self.prompts.count("busy") == 1:
            status = 429
        headers = {"x-request-id": "req-1"} if prompt == "one" else None
        return JSONResponse({"id": f"cmpl-{len(self.prompts)}", "text": prompt}, status, headers)

    async def _stream(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                for number in range(1000):
                    yield b"%d " % number
                    await asyncio.sleep(self.delay_s)
            except BaseException:
                self.num_cancelled += 1
                raise

        return StreamingResponse(pieces(), media_type="text/event-stream")
