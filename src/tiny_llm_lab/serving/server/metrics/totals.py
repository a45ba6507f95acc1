"""The numbers behind the metrics; each field has the name of its metric, without the prefix."""

from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from tiny_llm_lab.serving.server.metrics.histogram import (
    REQUEST_S,
    REQUEST_TOKENS,
    STEP_TOKENS,
    TOKEN_GAP_S,
    TTFT_S,
    Histogram,
)
from tiny_llm_lab.types import FinishReason

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
