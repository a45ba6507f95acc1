"""`Totals` as the text that Prometheus reads."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.metrics.totals import Histogram, Totals

PREFIX: Final = "tiny_llm:"


def exposition(metrics: EngineMetrics, model_name: str) -> bytes:
    """All metrics of the engine, labelled with its model, and of the process, as text."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(metrics, model_name))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _EngineCollector(Collector):
    """Reads the totals when Prometheus asks."""

    def __init__(self, metrics: EngineMetrics, model_name: str) -> None:
        self._metrics, self._model_name = metrics, model_name

    def collect(self) -> Iterator[Metric]:
        totals, labels, values = self._metrics.totals(), ["model_name"], [self._model_name]
        for each in fields(Totals):
            name, about, value = PREFIX + each.name, each.metadata["about"], getattr(totals, each.name)
            family: Metric
            match value:
                case Histogram():
                    family = HistogramMetricFamily(name, about, labels=labels)
                    family.add_metric(values, _buckets(value), value.sum)
                case dict():
                    family = CounterMetricFamily(name, about, labels=[*labels, "finished_reason"])
                    for reason, number in value.items():
                        family.add_metric([*values, reason], number)
                case _:
                    kind = GaugeMetricFamily if each.metadata["is_gauge"] else CounterMetricFamily
                    family = kind(name, about, labels=labels)
                    family.add_metric(values, value)
            yield family
        config = self._metrics.cache_config
        info = GaugeMetricFamily(
            PREFIX + "cache_config_info", "Facts about the KV cache.", labels=[*labels, *config]
        )
        info.add_metric([*values, *config.values()], 1)
        yield info


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
