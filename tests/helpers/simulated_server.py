"""A server that needs no time: it schedules by a variant's flags on a virtual clock, and caches prefixes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.load.client import LoadOptions, LoadRun, RequestRecord, Usage
from tiny_llm_lab.measure.traffic.request import LoadRequest

STEP_S, TOKEN_S = 0.001, 0.0001  # of a step, and of each of its tokens
_BLOCK = 16


@dataclass
class SimulatedServers:
    """Servers whose URL is the name of their variant; `calls` holds what was sent to which."""

    is_own: bool = True
    variants: dict[str, Variant] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    stored: dict[str, set[int]] = field(default_factory=dict)  # hashes of the blocks that a server has seen

    def url(self, variant: Variant) -> str:
        self.variants[variant.name] = variant
        return variant.name

    def close(self) -> None: ...

    def send_load(
        self, url: str, model: str, requests: Sequence[LoadRequest], options: LoadOptions
    ) -> LoadRun:
        """First come, first served; a decode takes a token of the budget, and prompts share what is left."""
        self.calls.append(url)
        flags = self.variants[url].flags
        is_caching = "--no-enable-prefix-caching" not in flags
        jobs = [_Job(each, self._num_cached(url, each) if is_caching else 0) for each in requests]
        if options.max_concurrency == 1:
            start_s = 0.0
            for job in jobs:
                job.arrival_s = start_s
                _serve([job], flags)
                start_s = job.token_s[-1]
        else:
            _serve(jobs, flags)
        return LoadRun([job.record() for job in jobs])

    def _num_cached(self, url: str, request: LoadRequest) -> int:
        """The tokens, or characters, of the full blocks that this server has seen, which are never all."""
        stored, tokens = self.stored.setdefault(url, set()), request.prompt
        chain, hashes = 0, list[int]()
        for start in range(0, len(tokens) - _BLOCK, _BLOCK):
            chain = hash((chain, *tokens[start : start + _BLOCK]))
            hashes.append(chain)
        hits = sum(1 for _ in itertools.takewhile(stored.__contains__, hashes))
        stored.update(hashes)
        return min(hits * _BLOCK, request.num_prompt_tokens - 1)


class _Job:
    def __init__(self, request: LoadRequest, num_cached: int) -> None:
        self.request, self.arrival_s = request, request.arrival_s
        self.num_cached = num_cached
        self.left = request.num_prompt_tokens - self.num_cached
        self.token_s: list[float] = []

    def record(self) -> RequestRecord:
        usage = Usage(self.request.num_prompt_tokens, len(self.token_s), self.num_cached)
        return RequestRecord(
            self.request, self.arrival_s, self.token_s[-1], tuple(self.token_s), "", "length", usage, "usage"
        )


def _serve(jobs: Sequence[_Job], flags: Sequence[str]) -> None:
    values = dict(itertools.pairwise(flags))
    budget = int(values.get("--max-num-batched-tokens", 2048))
    if slo_ms := values.get("--itl-slo-ms"):
        budget = int((float(slo_ms) / 1000 - STEP_S) / TOKEN_S) - 1
    is_chunked = "--no-enable-chunked-prefill" not in flags
    most = int(values.get("--long-prefill-token-threshold", budget))
    now = min(job.arrival_s for job in jobs)
    live = sorted(jobs, key=lambda job: job.arrival_s)
    while live:
        here = [job for job in live if job.arrival_s <= now]
        if not here:
            now = live[0].arrival_s
            continue
        room, served, total = budget, [], 0
        for job in sorted(here, key=lambda job: job.left > 0):
            size = 1 if not job.left else min(job.left, most, room) if is_chunked else job.left
            if 0 < size <= room:
                room, total = room - size, total + size
                job.left = max(0, job.left - size)
                served.append(job)
        now += STEP_S + TOKEN_S * total
        for job in served:
            if not job.left:
                job.token_s.append(now)
        live = [job for job in live if len(job.token_s) < job.request.max_tokens]
