"""The numbers behind the metrics, and their help; a field is named like its metric, without the prefix."""
# ruff: noqa: RUF009 - `_histogram` is a field

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from tiny_llm_lab.types import FinishReason

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


REASONS: Final[tuple[FinishReason, ...]] = ("stop", "length", "abort", "error")


def _gauge(about: str) -> Any:
    return field(default=0, metadata={"about": about, "is_gauge": True})


def _counter(about: str) -> Any:
    return field(default=0, metadata={"about": about, "is_gauge": False})


def _histogram(bounds: Sequence[float], about: str) -> Any:
    return field(default_factory=partial(Histogram, bounds), metadata={"about": about})


@dataclass
class Totals:
    """Counters since the start, gauges after the last event, and histograms. Times in seconds.

    For every request that ended: end-to-end latency = queue + prefill + decode, and inference = prefill +
    decode. The end is that of the last token. Aborted and failed requests are counted in request_success
    under their reason; of the histograms they are in those of tokens and steps only.
    """

    num_requests_running: int = _gauge("Running requests, which hold KV blocks.")
    num_requests_waiting: int = _gauge("Requests waiting in the queue, preempted ones included.")
    kv_cache_usage_perc: float = _gauge("KV cache usage: 1 is 100 percent.")
    max_num_batched_tokens: int = _gauge("The token budget of a step.")
    max_num_seqs: int = _gauge("Most requests that run at a time.")

    prompt_tokens: int = _counter("Tokens of prompts whose first token was sampled, cached ones included.")
    prompt_tokens_cached: int = _counter("Prompt tokens found in the prefix cache.")
    prompt_tokens_computed: int = _counter(
        "Prompt tokens computed in steps, including those computed again after a preemption."
    )
    generation_tokens: int = _counter("Tokens in answers.")
    prefix_cache_queries: int = _counter("Prompt tokens looked up in the prefix cache, in full blocks.")
    prefix_cache_hits: int = _counter("Tokens found in the prefix cache.")
    prefix_cache_disk_hits: int = _counter("Tokens of these hits that were read from --prefix-cache-dir.")
    prefix_cache_disk_written_bytes: int = _counter("Bytes written to --prefix-cache-dir.")
    prefix_cache_disk_dropped_blocks: int = _counter("Blocks not written: the disk was too slow or full.")
    state_snapshots: int = _gauge("Snapshots of a hybrid model's states in the prefix cache.")
    state_snapshots_used: int = _counter("Snapshots that a request went on from.")
    state_snapshots_evicted: int = _counter("Snapshots that were replaced, least recently used first.")
    num_preemptions: int = _counter("Preemptions: a request lost its blocks and waited again.")
    spec_decode_num_drafts: int = _counter("Drafts that were verified.")
    spec_decode_num_draft_tokens: int = _counter("Draft tokens that were verified.")
    spec_decode_num_accepted_tokens: int = _counter("Draft tokens that were accepted.")
    request_success: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(REASONS, 0),
        metadata={"about": "Requests that ended, by reason."},
    )

    iteration_tokens_total: Histogram = _histogram(STEP_TOKENS, "Tokens in a step.")
    step_time_seconds: Histogram = _histogram(TOKEN_GAP_S, "Seconds from the launch of a step to its tokens.")
    time_to_first_token_seconds: Histogram = _histogram(TTFT_S, "Seconds from arrival to the first token.")
    inter_token_latency_seconds: Histogram = _histogram(
        TOKEN_GAP_S, "Seconds between two steps with tokens for a request, for every such pair."
    )
    request_time_per_output_token_seconds: Histogram = _histogram(
        TOKEN_GAP_S, "Mean seconds between the tokens of a request."
    )
    e2e_request_latency_seconds: Histogram = _histogram(REQUEST_S, "Seconds from arrival to the last token.")
    request_queue_time_seconds: Histogram = _histogram(
        REQUEST_S, "Seconds from arrival to the launch of the first step."
    )
    request_inference_time_seconds: Histogram = _histogram(
        REQUEST_S, "Seconds from the launch of the first step to the last token."
    )
    request_prefill_time_seconds: Histogram = _histogram(
        REQUEST_S, "Seconds from the launch of the first step to the first token."
    )
    request_decode_time_seconds: Histogram = _histogram(
        REQUEST_S, "Seconds from the first token to the last."
    )
    request_prompt_tokens: Histogram = _histogram(REQUEST_TOKENS, "Tokens in a prompt.")
    request_generation_tokens: Histogram = _histogram(REQUEST_TOKENS, "Tokens in an answer.")
    request_params_max_tokens: Histogram = _histogram(REQUEST_TOKENS, "max_tokens of a request.")

    def copy(self) -> "Totals":
        """A copy that later changes leave alone."""
        copied = {
            each.name: getattr(self, each.name).copy()
            for each in fields(self)
            if isinstance(getattr(self, each.name), Histogram | dict)
        }
        return replace(self, **copied)
