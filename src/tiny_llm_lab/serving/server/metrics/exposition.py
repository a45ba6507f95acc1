"""`Totals` as the text that Prometheus reads."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.metrics.totals import Histogram

PREFIX: Final = "tiny_llm:"
_GAUGES: Final = {
    "num_requests_running": "Requests that hold blocks.",
    "num_requests_waiting": "Requests that wait to be admitted, preempted ones included.",
    "kv_cache_usage_perc": "KV cache usage: 1 is 100 percent.",
    "max_num_batched_tokens": "The token budget of a step.",
    "max_num_seqs": "The most requests that run at a time.",
}
_COUNTERS: Final = {
    "prompt_tokens": "Tokens of prompts that brought a first token, cached ones included.",
    "prompt_tokens_cached": "Tokens of prompts found in the prefix cache.",
    "prompt_tokens_computed": "Tokens of prompts that steps computed, again after a preemption.",
    "generation_tokens": "Tokens of answers.",
    "prefix_cache_queries": "Tokens of prompts looked up in the prefix cache: those with a full block.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "num_preemptions": "Requests that lost their blocks and waited again.",
    "spec_decode_num_drafts": "Drafts that were verified.",
    "spec_decode_num_draft_tokens": "Draft tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were accepted.",
}
_HISTOGRAMS: Final = {
    "iteration_tokens_total": "Tokens of a step.",
    "step_time_seconds": "From the launch of a step to its tokens.",
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "The gap between two steps that bring tokens of a request, every one.",
    "request_time_per_output_token_seconds": "The mean gap between the tokens of a request.",
    "e2e_request_latency_seconds": "From arrival to the last token.",
    "request_queue_time_seconds": "From arrival to the launch of the first step.",
    "request_inference_time_seconds": "From the launch of the first step to the last token.",
    "request_prefill_time_seconds": "From the launch of the first step to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_prompt_tokens": "Tokens of a prompt.",
    "request_generation_tokens": "Tokens of an answer.",
    "request_params_max_tokens": "The max_tokens of a request.",
}


def exposition(metrics: EngineMetrics, model_name: str) -> bytes:
    """All metrics of the engine, labelled with its model, and those of the process, as text."""
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
        for name, about in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=labels)
            gauge.add_metric(values, getattr(totals, name))
            yield gauge
        for name, about in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, about, labels=labels)
            counter.add_metric(values, getattr(totals, name))
            yield counter
        about = "Requests that left the engine, by reason."
        ends = CounterMetricFamily(PREFIX + "request_success", about, labels=[*labels, "finished_reason"])
        for reason, number in totals.request_success.items():
            ends.add_metric([*values, reason], number)
        yield ends
        for name, about in _HISTOGRAMS.items():
            family = HistogramMetricFamily(PREFIX + name, about, labels=labels)
            observed = getattr(totals, name)
            family.add_metric(values, _buckets(observed), observed.sum)
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
