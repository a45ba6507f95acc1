"""`/metrics`, and the line in the log that goes with them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tiny_llm_lab.serving.server.api import Served
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Totals
from tiny_llm_lab.serving.server.metrics.exposition import exposition
from tiny_llm_lab.types import Clock

INTERVAL_S: Final = 10.0
_LOG: Final = logging.getLogger("tiny_llm.stats")


class StatsLog:
    """Says what the engine did since the last line, in vLLM's words, which say "GPU" on every device."""

    def __init__(self, metrics: EngineMetrics, clock: Clock = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._last, self._last_s = metrics.totals(), clock()

    def line(self) -> str | None:
        """The line for the time since the last call; None when the engine had no work.

        Throughputs are tokens per second of the whole time, idle or not: what was asked for, not how fast
        the engine can be. Prompt tokens are those computed, neither cached nor estimated, the hit rate is
        the share of looked-up tokens; queues and usage are those of now.
        """
        now, now_s = self._metrics.totals(), self._clock()
        last, seconds = self._last, now_s - self._last_s
        self._last, self._last_s = now, now_s
        num_prompt = now.prompt_tokens_computed - last.prompt_tokens_computed
        num_generated = now.generation_tokens - last.generation_tokens
        num_read = now.prefix_cache_disk_hits - last.prefix_cache_disk_hits
        is_busy = num_prompt or num_generated or now.num_requests_running or now.num_requests_waiting
        if not is_busy or seconds <= 0:
            return None
        return (
            f"Avg prompt throughput: {num_prompt / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {num_generated / seconds:.1f} tokens/s, "
            f"Running: {now.num_requests_running} reqs, Waiting: {now.num_requests_waiting} reqs, "
            f"GPU KV cache usage: {now.kv_cache_usage_perc:.1%}, "
            f"Prefix cache hit rate: {_hit_rate(now, last)}"
            + (f", from disk: {num_read} tokens" if num_read else "")
            + (f", State snapshots: {now.state_snapshots}" if now.state_snapshots else "")
        )


def _hit_rate(now: Totals, last: Totals) -> str:
    asked = now.prefix_cache_queries - last.prefix_cache_queries
    return f"{(now.prefix_cache_hits - last.prefix_cache_hits) / asked:.1%}" if asked else "n/a"


@contextlib.asynccontextmanager
async def stats_logged(metrics: EngineMetrics, interval_s: float | None = None) -> AsyncIterator[None]:
    """Write `StatsLog.line` to the logger "tiny_llm.stats" every `interval_s` (INTERVAL_S) seconds."""
    stats = StatsLog(metrics)

    async def write() -> None:
        while True:
            await asyncio.sleep(INTERVAL_S if interval_s is None else interval_s)
            if (line := stats.line()) is not None:
                _LOG.info(line)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Within the lifespan of the application, which has set the served model.
    async with stats_logged(app.state.served.metrics) if app.state.logs_stats else nullcontext():
        yield


router = APIRouter(lifespan=_lifespan)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(served: Served) -> Response:  # on a thread, as a page of text takes a millisecond
    """The metrics of the engine and the process, for Prometheus."""
    page = exposition({served.names[0]: served.metrics})
    return Response(page, media_type=CONTENT_TYPE_PLAIN_0_0_4)
