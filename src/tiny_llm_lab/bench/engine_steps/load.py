"""Requests that arrive while others are served: who asks when, serving them, and what they waited for."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_lab.metrics import percentile, pooled_itl
from tiny_llm_lab.types import Clock, Prompt, Timing, UserError

# Longest sleep while nobody has arrived, so that an interrupt is never far away.
_LONGEST_NAP_S = 0.05


def serve(
    engine: Any,
    prompts: Sequence[Prompt],
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> list[Timing]:
    """Answer `prompts`, in order of arrival, each when it is due; times from the start, in their order.

    A prompt that became due while a step was computed arrives at its own time, not at the step's end.
    Raises UserError when an answer has not as many tokens as were asked for.
    """
    queue = deque(enumerate(prompts))
    timings: dict[int, Timing] = {}
    start_s = clock()
    while queue or engine.has_requests:
        now_s = clock() - start_s
        while queue and queue[0][1].arrival_s <= now_s:
            number, prompt = queue.popleft()
            engine.add(str(number), prompt.content, prompt.sampling, arrival_s=start_s + prompt.arrival_s)
        if not engine.has_requests:
            sleep(min(queue[0][1].arrival_s - now_s, _LONGEST_NAP_S))
            continue
        for output in engine.step():
            if output.completion is not None:
                timings[int(output.request_id)] = since(start_s, output.completion.timing)
    _check(prompts, timings)
    return [timings[number] for number in range(len(prompts))]


def since(start_s: float, timing: Timing) -> Timing:
    """The same times counted from `start_s`."""
    return Timing(timing.arrival_s - start_s, tuple(time_s - start_s for time_s in timing.token_s))


@dataclass(frozen=True)
class Latencies:
    """What the requests of one run waited for; goodput counts requests inside both SLOs, per second."""

    total_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    itl_max_s: float
    goodput: float
    attainment: float
    output_tokens_per_s: float


def latencies(timings: Sequence[Timing], itl_slo_s: float, ttft_slo_s: float) -> Latencies:
    """The numbers of requests that were all served, at least one of them with two tokens."""
    total_s = max(timing.token_s[-1] for timing in timings) - min(timing.arrival_s for timing in timings)
    ttfts, gaps = [_ttft_s(timing) for timing in timings], pooled_itl(timings)
    num_good = sum(is_served_well(timing, itl_slo_s, ttft_slo_s) for timing in timings)
    return Latencies(
        total_s,
        percentile(ttfts, 50),
        percentile(ttfts, 99),
        percentile(gaps, 50),
        percentile(gaps, 99),
        max(gaps),
        num_good / total_s,
        num_good / len(timings),
        sum(len(timing.token_s) for timing in timings) / total_s,
    )


def is_served_well(timing: Timing, itl_slo_s: float, ttft_slo_s: float) -> bool:
    """Whether the first token and the gaps are in time; one late gap in a hundred is allowed, as in a p99."""
    gaps = timing.itl_s
    num_late = sum(gap > itl_slo_s for gap in gaps)
    return _ttft_s(timing) <= ttft_slo_s and num_late <= len(gaps) // 100


def _ttft_s(timing: Timing) -> float:
    return timing.token_s[0] - timing.arrival_s


def _check(prompts: Sequence[Prompt], timings: dict[int, Timing]) -> None:
    """Every request did exactly the work that was asked for; otherwise runs cannot be compared."""
    for number, prompt in enumerate(prompts):
        got = len(timings[number].token_s) if number in timings else 0
        if got != prompt.sampling.max_tokens:
            raise UserError(f"request {number} got {got} tokens instead of {prompt.sampling.max_tokens}")
