"""`Totals` as the text that Prometheus reads."""

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from functools import partial
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Histogram, Totals

PREFIX: Final = "tiny_llm:"
_ENGINE: Final = "tiny_llm_engine"


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
        for each in fields(Totals) if results else ():
            yield _family(each, {name: getattr(totals, each.name) for name, totals in results.items()})
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


def _family(total: Field[Any], values: Mapping[str, Any]) -> Metric:
    """A field of `Totals`, by the name of the model."""
    name, about, labels = PREFIX + total.name, total.metadata["about"], ["model_name"]
    family: Metric
    match next(iter(values.values())):
        case Histogram():
            family = HistogramMetricFamily(name, about, labels=labels)
            for model, value in values.items():
                family.add_metric([model], _buckets(value), value.sum)
        case dict():
            family = CounterMetricFamily(name, about, labels=[*labels, total.metadata["label"]])
            for model, value in values.items():
                for reason, number in value.items():
                    family.add_metric([model, reason], number)
        case _:
            kind = GaugeMetricFamily if total.metadata["is_gauge"] else CounterMetricFamily
            family = kind(name, about, labels=labels)
            for model, value in values.items():
                family.add_metric([model], value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
