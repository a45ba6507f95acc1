"""Counts what an engine does."""

# ruff: noqa: RUF009 - `_histogram` is a field

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tiny_llm_lab.runtime.metrics import tpot_s
from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineListener
from tiny_llm_lab.serving.async_engine.messages import CacheCounts, EngineFacts, Queues, StepReport
from tiny_llm_lab.serving.server.prompts.reuse import Reuse
from tiny_llm_lab.types import Completion, EngineOutput, FinishReason, SchedulerConfig, TokenEvent
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts

# vLLM's bounds in seconds, and ours below its first ones, 10 ms and 300 ms, for small models' steps.
TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_S: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS: Final = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class Histogram:
    """Counts of values by their upper bound, and the sum of the values; not safe for several threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; values above the last count under one more bound, infinity."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` under the first bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> "Histogram":
        """A copy that later observations do not change."""
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other


_MOST_CLIENTS: Final = 16  # programs with a name of their own
REASONS: Final[tuple[FinishReason, ...]] = ("stop", "length", "abort", "error")


def _histogram(bounds: Sequence[float]) -> Histogram:
    return field(default_factory=partial(Histogram, bounds))


@dataclass
class Totals:
    """Counters since the start, gauges after the last event, and histograms. Times in seconds.

    For every request that ended: end-to-end latency = queue + prefill + decode, and inference = prefill +
    decode. The end is that of the last token. Aborted and failed requests are counted in request_success
    under their reason; of the histograms they are in those of tokens and steps only.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage_perc: float = 0
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_computed: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_disk_hits: int = 0
    prefix_cache_disk_written_bytes: int = 0
    prefix_cache_disk_dropped_blocks: int = 0
    pictures_read: int = 0
    picture_hits: int = 0
    tower_milliseconds: int = 0
    state_snapshots: int = 0
    state_snapshots_used: int = 0
    state_snapshots_evicted: int = 0
    num_preemptions: int = 0
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    request_success: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    client_prompt_tokens_computed: Counter[str] = field(default_factory=Counter)
    client_prompt_tokens_computed_again: Counter[str] = field(default_factory=Counter)

    iteration_tokens_total: Histogram = _histogram(STEP_TOKENS)
    step_time_seconds: Histogram = _histogram(TOKEN_GAP_S)
    time_to_first_token_seconds: Histogram = _histogram(TTFT_S)
    inter_token_latency_seconds: Histogram = _histogram(TOKEN_GAP_S)
    request_time_per_output_token_seconds: Histogram = _histogram(TOKEN_GAP_S)
    e2e_request_latency_seconds: Histogram = _histogram(REQUEST_S)
    request_queue_time_seconds: Histogram = _histogram(REQUEST_S)
    request_inference_time_seconds: Histogram = _histogram(REQUEST_S)
    request_prefill_time_seconds: Histogram = _histogram(REQUEST_S)
    request_decode_time_seconds: Histogram = _histogram(REQUEST_S)
    request_prompt_tokens: Histogram = _histogram(REQUEST_TOKENS)
    request_generation_tokens: Histogram = _histogram(REQUEST_TOKENS)
    request_params_max_tokens: Histogram = _histogram(REQUEST_TOKENS)

    def copy(self) -> "Totals":
        """A copy that later changes leave alone."""
        grown = [name for name, each in vars(self).items() if isinstance(each, Histogram | dict)]
        return replace(self, **{name: getattr(self, name).copy() for name in grown})


@dataclass(slots=True)
class _Live:
    """A request in the engine; all times on its clock."""

    asked: AddedRequest
    scheduled_s: float | None = None  # launch of its first step
    last_token_s: float | None = None
    has_output: bool = False


class EngineMetrics(EngineListener):
    """Keeps the `Totals` of one engine; any thread may ask for a copy.

    A step costs a few microseconds, most of them for the gaps of its tokens; nothing is buffered, so memory
    does not grow between scrapes.
    """

    def __init__(self) -> None:
        """Sets cache_config, facts about the KV cache that do not change while the engine runs, and pid, the
        process that computes: this one until an engine says otherwise.
        """
        self._totals = Totals()
        self.cache_config: dict[str, str] = {}
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._unscheduled: set[str] = set()
        self._num_blocks, self.pid = 1, os.getpid()
        self._step_end_s = 0.0
        # After a failed step the engine has an empty prefix cache, and its counters begin at 0.
        self._cache_generation = -1
        self._earlier = Totals()
        self._disk = DiskCounts()  # of this process of the engine, at its last step

    def totals(self) -> Totals:
        """The current numbers."""
        with self._lock:
            return self._totals.copy()

    def started(self, facts: EngineFacts) -> None:
        with self._lock:
            self._num_blocks, self.pid = facts.num_blocks, facts.pid or os.getpid()
            self.cache_config = {
                "block_size": str(facts.block_size),
                "num_gpu_blocks": str(facts.num_blocks),  # vLLM's name, whatever the device
                "enable_prefix_caching": str(facts.has_prefix_cache),
            }
            self._cache_generation, self._disk = -1, DiskCounts()
            self._observe_queues(idle := Queues(num_free_blocks=facts.num_blocks))
        for request_id in list(self._live):  # in an engine that has died, and their clients had gone
            self._left(request_id, "abort", idle)
        self.configured(facts.config)

    def configured(self, config: SchedulerConfig) -> None:
        with self._lock:
            self._totals.max_num_batched_tokens = config.max_num_batched_tokens
            self._totals.max_num_seqs = config.max_num_seqs

    def added(self, request: AddedRequest, queues: Queues) -> None:
        with self._lock:
            self._live[request.request_id] = _Live(request)
            self._unscheduled.add(request.request_id)
            self._observe_queues(queues)

    def stepped(self, report: StepReport) -> None:
        plan, stats = report.plan, report.stats
        with self._lock:
            totals = self._totals
            self._step_end_s = stats.end_s
            self._observe_queues(Queues(stats.num_running, stats.num_waiting, stats.num_free_blocks))
            totals.num_preemptions += len(plan.preempted)
            totals.prompt_tokens_computed += stats.num_prompt_tokens
            totals.iteration_tokens_total.observe(plan.total_num_scheduled_tokens)
            totals.step_time_seconds.observe(stats.end_s - stats.start_s)
            if self._unscheduled:
                for name in self._unscheduled.intersection(plan.num_scheduled_tokens):
                    self._live[name].scheduled_s = stats.start_s
                    self._unscheduled.discard(name)
            self._observe_prefix_cache(report.cache)
            self._observe_disk(report.disk)
            totals.spec_decode_num_drafts = report.drafts.num_drafts
            totals.spec_decode_num_draft_tokens = report.drafts.num_draft_tokens
            totals.spec_decode_num_accepted_tokens = report.drafts.num_accepted_tokens

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        with self._lock:
            for output in outputs:
                if (live := self._live.get(output.request_id)) is not None:
                    self._observe_output(live, output)

    def aborted(self, request_id: str, queues: Queues) -> None:
        self._left(request_id, "abort", queues)

    def failed(self, request_id: str, queues: Queues) -> None:
        self._left(request_id, "error", queues)

    def explained(self, request_id: str, client: str, reuse: Reuse) -> None:
        with self._lock:
            computed = self._totals.client_prompt_tokens_computed
            name = client if client in computed or len(computed) < _MOST_CLIENTS else "other"
            computed[name] += reuse.num_computed
            self._totals.client_prompt_tokens_computed_again[name] += reuse.num_again

    def _left(self, request_id: str, reason: FinishReason, queues: Queues) -> None:
        with self._lock:
            if self._live.pop(request_id, None) is not None:
                self._totals.request_success[reason] += 1
            self._unscheduled.discard(request_id)
            self._observe_queues(queues)  # no step may follow

    def _observe_queues(self, queues: Queues) -> None:
        self._totals.num_requests_running = queues.num_running
        self._totals.num_requests_waiting = queues.num_waiting
        self._totals.kv_cache_usage_perc = 1 - queues.num_free_blocks / self._num_blocks

    def _observe_prefix_cache(self, cache: CacheCounts) -> None:
        if cache.generation != self._cache_generation:
            self._earlier = self._totals.copy()
            self._cache_generation = cache.generation
        totals, earlier = self._totals, self._earlier
        totals.prefix_cache_queries = earlier.prefix_cache_queries + cache.num_query_tokens
        totals.prefix_cache_hits = earlier.prefix_cache_hits + cache.num_hit_tokens
        totals.state_snapshots = cache.num_snapshots
        totals.state_snapshots_used = earlier.state_snapshots_used + cache.num_snapshots_used
        totals.state_snapshots_evicted = earlier.state_snapshots_evicted + cache.num_snapshots_evicted

    def _observe_disk(self, disk: DiskCounts) -> None:
        totals, last = self._totals, self._disk
        totals.prefix_cache_disk_hits += disk.num_hit_tokens - last.num_hit_tokens
        totals.prefix_cache_disk_written_bytes += disk.num_written_bytes - last.num_written_bytes
        totals.prefix_cache_disk_dropped_blocks += disk.num_dropped_blocks - last.num_dropped_blocks
        totals.pictures_read += disk.num_pictures - last.num_pictures
        totals.picture_hits += disk.num_picture_hits - last.num_picture_hits
        totals.tower_milliseconds += round(1000 * disk.tower_s) - round(1000 * last.tower_s)
        self._disk = disk

    def _observe_output(self, live: _Live, output: EngineOutput) -> None:
        totals, last_s = self._totals, live.last_token_s
        if not live.has_output:
            live.has_output = True
            totals.prompt_tokens += live.asked.num_prompt_tokens
            totals.prompt_tokens_cached += output.num_cached_tokens
        tokens = (each for each in output.events if isinstance(each, TokenEvent))
        # With drafts a step returns several tokens at once.
        if (first := next((each for each in tokens if each.token_id is not None), None)) is not None:
            if last_s is None:
                totals.time_to_first_token_seconds.observe(first.time_s - live.asked.arrival_s)
            else:
                totals.inter_token_latency_seconds.observe(first.time_s - last_s)
            live.last_token_s = first.time_s
        totals.generation_tokens += len(output.token_ids)
        if output.completion is not None:
            del self._live[output.request_id]
            self._observe_end(live, output.completion)

    def _observe_end(self, live: _Live, completion: Completion) -> None:
        totals, asked, timing = self._totals, live.asked, completion.timing
        # If an answer is only an end-of-sequence token, it ends with its step.
        token_s = timing.token_s or (self._step_end_s,)
        first_s, last_s = token_s[0], token_s[-1]
        launched_s = asked.arrival_s if live.scheduled_s is None else max(asked.arrival_s, live.scheduled_s)
        totals.request_success[completion.finish_reason] += 1
        totals.e2e_request_latency_seconds.observe(last_s - asked.arrival_s)
        totals.request_queue_time_seconds.observe(launched_s - asked.arrival_s)
        totals.request_inference_time_seconds.observe(last_s - launched_s)
        totals.request_prefill_time_seconds.observe(first_s - launched_s)
        totals.request_decode_time_seconds.observe(last_s - first_s)
        totals.request_prompt_tokens.observe(asked.num_prompt_tokens)
        totals.request_generation_tokens.observe(len(completion.token_ids))
        if (per_token_s := tpot_s(timing)) is not None:
            totals.request_time_per_output_token_seconds.observe(per_token_s)
        if asked.sampling.max_tokens is not None:
            totals.request_params_max_tokens.observe(asked.sampling.max_tokens)
