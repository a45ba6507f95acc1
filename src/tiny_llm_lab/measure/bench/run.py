"""The record of one run: when each token came and when each chunk was computed."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    Event,
    PrefillEvent,
    StepPlan,
    StepStats,
    Timing,
    UserError,
)


@dataclass(frozen=True)
class Chunk:
    """One prefill forward pass: `num_tokens` of request `prompt_idx`."""

    prompt_idx: int
    num_tokens: int
    start_s: float
    end_s: float


def decoding(token_s: Sequence[Sequence[float]], start_s: float, end_s: float) -> list[int]:
    """Which answers have a token before a time and another after a later one."""
    return [idx for idx, each in enumerate(token_s) if each and each[0] <= start_s and end_s < each[-1]]


@dataclass(frozen=True)
class Run:
    """One run; times are seconds from its start. A field that the engine does not report stays 0 or None."""

    requests: tuple[Request, ...]
    timings: tuple[Timing, ...]
    chunks: tuple[Chunk, ...] = ()
    weights_bytes: int = 0  # that a decode step reads
    kv_bytes_per_token: int = 0
    state_bytes: int = 0  # of one request; a decode step reads and writes them
    facts: dict[str, str] = field(default_factory=dict)  # such as device, dtype and version
    num_computed_tokens: int | None = None  # padding and rejected tokens included
    peak_bytes: int | None = None  # above the weights

    @property
    def total_s(self) -> float:
        """From the first arrival to the last token."""
        return max(each.token_s[-1] for each in self.timings) - min(each.arrival_s for each in self.timings)

    @property
    def output_tokens_per_s(self) -> float:
        return sum(len(timing.token_s) for timing in self.timings) / self.total_s

    def of_kind(self, *kinds: str) -> list[Timing]:
        return [t for request, t in zip(self.requests, self.timings, strict=True) if request.kind in kinds]

    def long_spans(self) -> dict[int, tuple[float, float]]:
        """When each long prompt was in prefill: from the start of its first chunk to the end of its last."""
        spans = {}
        for idx, request in enumerate(self.requests):
            chunks = [chunk for chunk in self.chunks if chunk.prompt_idx == idx]
            if request.kind == "long" and chunks:
                spans[idx] = (chunks[0].start_s, chunks[-1].end_s)
        return spans

    def decoding_during(self, span: tuple[float, float]) -> list[int]:
        """Requests with a token before a span and another after its start."""
        return decoding([each.token_s for each in self.timings], span[0], span[0])

    def victims(self) -> list[int]:
        """Requests that were decoding while a long prompt was in prefill."""
        return sorted({idx for span in self.long_spans().values() for idx in self.decoding_during(span)})

    def to_json(self) -> dict[str, Any]:
        """When every token came and every chunk was computed."""
        requests = [
            asdict(request) | {"arrival_s": timing.arrival_s, "token_s": list(timing.token_s)}
            for request, timing in zip(self.requests, self.timings, strict=True)
        ]
        chunks = [[chunk.prompt_idx, chunk.num_tokens, chunk.start_s, chunk.end_s] for chunk in self.chunks]
        return {"requests": requests, "chunks": chunks}


def timings_of(requests: Sequence[Request], completions: Sequence[Completion]) -> tuple[Timing, ...]:
    """When each request's tokens came, from the start of the run.

    Raises UserError unless every request did exactly its work: otherwise runs cannot be compared.
    """
    if len(completions) != len(requests):
        raise UserError(f"the solution returned {len(completions)} completions for {len(requests)} prompts")
    for idx, (request, done) in enumerate(zip(requests, completions, strict=True)):
        got = len(done.timing.token_s)
        if done.error or done.num_prompt_tokens != request.prompt_len or got != request.max_tokens:
            reason = done.error or f"has an answer of {got} tokens instead of {request.max_tokens}"
            raise UserError(f"request {idx} of the benchmark: {reason}")
    start_s = start_of(requests, completions)
    return tuple(
        Timing(done.timing.arrival_s - start_s, tuple(time_s - start_s for time_s in done.timing.token_s))
        for done in completions
    )


def start_of(requests: Sequence[Request], completions: Sequence[Completion]) -> float:
    """What the run's clock said when a request of arrival 0 arrived."""
    return completions[0].timing.arrival_s - requests[0].arrival_s


def chunks_of(events: Sequence[Event], start_s: float, timings: Sequence[Timing]) -> tuple[Chunk, ...]:
    """The chunks of a loop that does one thing at a time.

    No event says that a chunk begins: it began when the event before its own happened, or when its request
    arrived, whichever was later. The last chunk of a prompt also computes the first token, in part after
    its event, because MLX is lazy.
    """
    times_s = [event.time_s for event in events if not isinstance(event, DoneEvent)]
    computed = [0] * len(timings)
    chunks = []
    for event in events:
        if not isinstance(event, PrefillEvent):
            continue
        idx, arrival_s = event.prompt_idx, timings[event.prompt_idx].arrival_s
        before_s = max((time_s for time_s in times_s if time_s < event.time_s), default=start_s) - start_s
        end_s = event.time_s - start_s
        if event.num_computed_tokens == event.num_prompt_tokens:
            end_s = max(end_s, timings[idx].token_s[0])
        new = event.num_computed_tokens - computed[idx]
        chunks.append(Chunk(idx, new, max(before_s, arrival_s, 0.0), end_s))
        computed[idx] = event.num_computed_tokens
    return tuple(chunks)


def chunks_of_steps(
    steps: Iterable[tuple[StepPlan, StepStats]],
    requests: Sequence[Request],
    start_s: float,
    timings: Sequence[Timing],
) -> tuple[Chunk, ...]:
    """The prefill chunks in an engine's steps; request ids are places in `requests`.

    The last chunk of a prompt ends with its first token, as in `chunks_of`.
    """
    computed, result = [0] * len(requests), []
    for plan, stats in steps:
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            idx = int(request_id)
            num_new = min(num_tokens, requests[idx].prompt_len - computed[idx])
            if num_new > 0:
                computed[idx] += num_new
                end_s = stats.end_s - start_s
                if computed[idx] == requests[idx].prompt_len:
                    end_s = max(end_s, timings[idx].token_s[0])
                result.append(Chunk(idx, num_new, stats.start_s - start_s, end_s))
    return tuple(result)
