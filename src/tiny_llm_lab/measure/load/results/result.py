"""What a load run comes to, under the keys of `vllm bench serve`."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from statistics import fmean, median, pstdev
from typing import Any, Final

from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.runtime.metrics import Slo, e2e_s, percentile, pooled_itl, tpot_s
from tiny_llm_lab.types import Timing, UserError


@dataclass(frozen=True)
class Goodput:
    """Targets in milliseconds; the ITL target allows one late gap in a hundred, like `Slo`."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2el: float = math.inf
    itl: float = math.inf

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Goodput":
        """Of "ttft:500 itl:50"; UserError for anything else."""
        names, targets = [each.name for each in fields(cls)], {}
        for text in texts:
            name, _, value = text.partition(":")
            try:
                targets[name] = float(value)
            except ValueError:
                targets[name] = 0.0
            if name not in names or not targets[name] > 0:
                raise UserError(
                    f"--goodput {text}: write {', '.join(names)} with milliseconds, such as ttft:500"
                )
        return cls(**targets)

    def holds(self, timing: Timing) -> bool:
        """Whether a request meets every target; one without a token does not."""
        if not timing.token_s:
            return False
        e2el_s, per_token_s = e2e_s(timing), tpot_s(timing) or 0.0
        is_in_time = e2el_s is not None and e2el_s * 1e3 <= self.e2el and per_token_s * 1e3 <= self.tpot
        return is_in_time and Slo(self.itl / 1e3, self.ttft / 1e3).holds(timing)


METRICS: Final = ("ttft", "tpot", "itl", "e2el")


def summarize(
    run: LoadRun, percentiles: Sequence[float], goodput: Goodput | None = None, is_open_loop: bool = False
) -> dict[str, Any]:
    """Counts, rates and latencies of `run`, the latencies in ms.

    Latencies count from sending; `from_arrival` has those from the scheduled arrival, None unless the loop is
    open. Goodput counts from the arrival. Percentiles are nearest-rank. Failed requests count as failed only.
    """
    done, total_s = run.completed, run.total_s
    input_tokens = sum(record.num_prompt_tokens for record in done)
    output_tokens = sum(len(record.token_s) for record in done)
    due = [record.timing_from_arrival if is_open_loop else record.timing for record in done]
    num_good = sum(goodput.holds(timing) for timing in due) if goodput else None
    return {
        "duration": total_s,
        "completed": len(done),
        "failed": len(run.failed),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _rate(len(done), total_s),
        "request_goodput": None if num_good is None else _rate(num_good, total_s),
        "output_throughput": _rate(output_tokens, total_s),
        "total_token_throughput": _rate(input_tokens + output_tokens, total_s),
        "max_output_tokens_per_s": _peak_rate(run),
        "max_concurrent_requests": _peak_concurrency(run),
        **latencies([record.timing for record in done], percentiles),
        "from_arrival": latencies(due, percentiles) if is_open_loop else None,
        "max_send_delay_ms": run.max_send_delay_s * 1e3,
        "tokens_counted_by": dict(Counter(record.counted_by for record in done)),
        "cached_tokens": sum(record.usage.cached_tokens or 0 for record in done if record.usage),
    }


def latencies(timings: Sequence[Timing], percentiles: Sequence[float]) -> dict[str, float | None]:
    """mean_ttft_ms, median_ttft_ms, std_ttft_ms, p99_ttft_ms and so on; None where nothing was measured."""
    pools: Mapping[str, Iterable[float | None]] = {
        "ttft": [timing.ttft_s for timing in timings],
        "tpot": [tpot_s(timing) for timing in timings],
        "itl": pooled_itl(timings),
        "e2el": [e2e_s(timing) for timing in timings],
    }
    result: dict[str, float | None] = {}
    for name, pool in pools.items():
        values = [value * 1e3 for value in pool if value is not None]
        result[f"mean_{name}_ms"] = fmean(values) if values else None
        result[f"median_{name}_ms"] = median(values) if values else None
        result[f"std_{name}_ms"] = pstdev(values) if values else None
        for percent in percentiles:
            key = f"p{percent:g}_{name}_ms"
            result[key] = percentile(values, percent) if values else None
        result[f"max_{name}_ms"] = max(values, default=None)
    return result


def details(run: LoadRun) -> dict[str, list[Any]]:
    """What --save-detailed adds, an entry for each request; times in s."""
    timings = [record.timing for record in run.records]
    return {
        "input_lens": [record.num_prompt_tokens for record in run.records],
        "output_lens": [len(record.token_s) for record in run.records],
        "ttfts": [timing.ttft_s for timing in timings],
        "itls": [timing.itl_s for timing in timings],
        "start_times": [record.send_s for record in run.records],
        "generated_texts": [record.text for record in run.records],
        "errors": [record.error or "" for record in run.records],
        "arrival_times": [record.request.arrival_s for record in run.records],
        "token_times": [list(record.token_s) for record in run.records],
        "finish_reasons": [record.finish_reason for record in run.records],
        "kinds": [record.request.kind for record in run.records],
    }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _peak_rate(run: LoadRun) -> int:
    """The most tokens of one second, of those that begin with the run."""
    seconds = Counter(math.floor(token_s) for record in run.completed for token_s in record.token_s)
    return max(seconds.values(), default=0)


def _peak_concurrency(run: LoadRun) -> int:
    """The most requests at a time, from sending to their ends."""
    # An end before a beginning at the same moment: -1 sorts before 1.
    events = sorted([(r.send_s, 1) for r in run.records] + [(r.end_s, -1) for r in run.records])
    return max(accumulate(change for _, change in events), default=0)
