"""`/metrics`, and the line in the log that goes with them."""

import asyncio
import contextlib
import logging
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, cast

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tiny_llm_lab.serving.server.api import Served
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Histogram, Totals
from tiny_llm_lab.types import Clock

PREFIX: Final = "tiny_llm:"
_ENGINE: Final = "tiny_llm_engine"
_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FAMILIES: Final[Mapping[str, Callable[..., Metric]]] = {
    "gauges": GaugeMetricFamily,
    "counters": CounterMetricFamily,
    "histograms": HistogramMetricFamily,
}


def exposition(engines: Mapping[str, EngineMetrics]) -> bytes:
    """All metrics of engines and their processes, labelled with their models, and of this process."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engines))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _EngineCollector(Collector):
    """Reads the totals when Prometheus asks."""

    def __init__(self, engines: Mapping[str, EngineMetrics]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        results = {name: metrics.totals() for name, metrics in self._engines.items()}
        for kind in _FAMILIES if results else ():
            for field, about in _TABLE[kind].items():
                yield _family(kind, field, about, results)
        for name, metrics in self._engines.items():
            config = metrics.cache_config
            info = GaugeMetricFamily(
                PREFIX + "cache_config_info", "Facts about the KV cache.", labels=["model_name", *config]
            )
            info.add_metric([name, *config.values()], 1)
            yield info
        yield from self._processes()

    def _processes(self) -> Iterator[Metric]:
        """Memory, processor time and files of the engines' processes, where the system tells."""
        results: dict[str, Metric] = {}
        for name, metrics in self._engines.items():
            collector = ProcessCollector(_ENGINE, pid=partial(int, metrics.pid), registry=None)
            for family in collector.collect():
                known = results.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    known.add_sample(sample.name, {"model_name": name}, sample.value)
        yield from results.values()


def _family(kind: str, field: str, about: str, results: Mapping[str, Totals]) -> Metric:
    """A field of `Totals`, by the name of the model."""
    label = _TABLE["labels"].get(field)
    family: Any = _FAMILIES[kind](PREFIX + field, about, labels=["model_name", *filter(None, [label])])
    for model, totals in results.items():
        match getattr(totals, field):
            case Histogram() as histogram:
                family.add_metric([model], _buckets(histogram), histogram.sum)
            case dict() as parts:
                for part, number in parts.items():
                    family.add_metric([model, part], number)
            case number:
                family.add_metric([model], number)
    return cast(Metric, family)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


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
