"""The numbers behind the metrics; each field has the name of its metric, without the prefix."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from tiny_llm_lab.types import FinishReason

# vLLM's bounds in seconds, and below its first ones, 10 ms and 300 ms, ours: small models' steps are shorter.
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
        """`bounds` ascend; a value above the last is counted by one more, infinite, bound."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` under the first bound that it does not exceed."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> "Histogram":
        """A histogram that later observations of this one do not change."""
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other


REASONS: Final[tuple[FinishReason, ...]] = ("stop", "length", "abort", "error")


@dataclass
class Totals:
    """Counters since the start, gauges after the last event, and histograms. Times in seconds.

    For every request that ended: end-to-end latency = queue + prefill + decode, and inference = prefill +
    decode. The end is that of the last token. Aborted and failed requests are counted in request_success
    under their reason; of the histograms they are in those of tokens and steps only.
    """

    # Gauges.
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage_perc: float = 0.0  # 1.0 is full; blocks that only the prefix cache holds are free
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0

    # Counters.
    prompt_tokens: int = 0  # of every request at its first output, cached ones included
    prompt_tokens_cached: int = 0  # of these, found in the prefix cache
    prompt_tokens_computed: int = 0  # by the steps, again after a preemption, also of requests that never end
    generation_tokens: int = 0  # without end-of-sequence tokens
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    num_preemptions: int = 0
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    request_success: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    # Of steps and tokens.
    iteration_tokens_total: Histogram = field(default_factory=partial(Histogram, STEP_TOKENS))
    step_time_seconds: Histogram = field(default_factory=partial(Histogram, TOKEN_GAP_S))
    time_to_first_token_seconds: Histogram = field(default_factory=partial(Histogram, TTFT_S))
    # Every gap of every request.
    inter_token_latency_seconds: Histogram = field(default_factory=partial(Histogram, TOKEN_GAP_S))

    # Of requests that ended well; the first of those with two tokens or more.
    request_time_per_output_token_seconds: Histogram = field(default_factory=partial(Histogram, TOKEN_GAP_S))
    e2e_request_latency_seconds: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    # From arrival to the launch of its first step.
    request_queue_time_seconds: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    request_inference_time_seconds: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    # From there to the first token.
    request_prefill_time_seconds: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    # From the first token to the last.
    request_decode_time_seconds: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    request_prompt_tokens: Histogram = field(default_factory=partial(Histogram, REQUEST_TOKENS))
    request_generation_tokens: Histogram = field(default_factory=partial(Histogram, REQUEST_TOKENS))
    # Where the request has a limit.
    request_params_max_tokens: Histogram = field(default_factory=partial(Histogram, REQUEST_TOKENS))

    def copy(self) -> "Totals":
        """The same numbers, which later changes of these leave as they are."""
        copied = {
            each.name: getattr(self, each.name).copy()
            for each in fields(self)
            if isinstance(getattr(self, each.name), Histogram | dict)
        }
        return replace(self, **copied)
