"""What one run of the workload left behind: when each token came and when each chunk was computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_lab.types import Timing

from .workload import Kind


@dataclass(frozen=True)
class Chunk:
    """One prefill forward pass: `num_tokens` of request `prompt_idx`."""

    prompt_idx: int
    num_tokens: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Sample:
    """One process's measurement; times are seconds from the start of its run."""

    prefill_step: int
    repeat: int
    kinds: tuple[Kind, ...]
    timings: tuple[Timing, ...]
    chunks: tuple[Chunk, ...]

    @property
    def total_s(self) -> float:
        """From the start to the last token of all."""
        return max(timing.token_s[-1] for timing in self.timings)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(timing.token_s) for timing in self.timings)

    def of_kind(self, kind: Kind) -> list[Timing]:
        return [timing for own, timing in zip(self.kinds, self.timings, strict=True) if own == kind]

    def long_spans(self) -> dict[int, tuple[float, float]]:
        """When each long prompt was in prefill: from the start of its first chunk to the end of its last."""
        spans = {}
        for idx, kind in enumerate(self.kinds):
            chunks = [chunk for chunk in self.chunks if chunk.prompt_idx == idx]
            if kind == "long" and chunks:
                spans[idx] = (chunks[0].start_s, chunks[-1].end_s)
        return spans

    def victims(self) -> list[int]:
        """Requests that were decoding while a long prompt was in prefill."""
        return sorted({idx for span in self.long_spans().values() for idx in self.victims_of(span)})

    def num_overlapping_arrivals(self) -> int:
        """Late requests that arrived while a long prompt was in prefill."""
        spans = self.long_spans().values()
        arrivals = [timing.arrival_s for timing in self.of_kind("late")]
        return sum(any(start <= arrival < end for start, end in spans) for arrival in arrivals)

    def victims_of(self, span: tuple[float, float]) -> list[int]:
        """Requests with a token before a span and another after its start."""
        return [
            idx
            for idx, timing in enumerate(self.timings)
            if timing.token_s and timing.token_s[0] <= span[0] < timing.token_s[-1]
        ]


def overlap_complaint(sample: Sample) -> str | None:
    """Why this sample measured nothing of interest: nobody decoded, or nobody arrived, in a long prefill."""
    spans = sample.long_spans()
    idle = [idx for idx, span in spans.items() if not sample.victims_of(span)]
    if len(spans) < sample.kinds.count("long"):
        return "a long prompt was never in prefill"
    if idle:
        return (
            f"nobody was decoding while long prompt {idle[0]} was in prefill: "
            "raise --max-tokens, or take a quieter machine"
        )
    if not sample.num_overlapping_arrivals():
        return "no short prompt arrived while a long one was in prefill: run again on a quieter machine"
    return None


def to_json(sample: Sample) -> dict[str, Any]:
    """A sample as it stands in the result file."""
    requests = [
        {"kind": kind, "arrival_s": timing.arrival_s, "token_s": list(timing.token_s)}
        for kind, timing in zip(sample.kinds, sample.timings, strict=True)
    ]
    chunks = [[chunk.prompt_idx, chunk.num_tokens, chunk.start_s, chunk.end_s] for chunk in sample.chunks]
    return {
        "prefill_step": sample.prefill_step,
        "repeat": sample.repeat,
        "requests": requests,
        "chunks": chunks,
    }


def from_json(value: dict[str, Any]) -> Sample:
    """The inverse of `to_json`."""
    return Sample(
        prefill_step=value["prefill_step"],
        repeat=value["repeat"],
        kinds=tuple(request["kind"] for request in value["requests"]),
        timings=tuple(
            Timing(request["arrival_s"], tuple(request["token_s"])) for request in value["requests"]
        ),
        chunks=tuple(Chunk(*chunk) for chunk in value["chunks"]),
    )


def chunks_from(
    prefills: Sequence[tuple[int, int, float, float]], event_s: Sequence[float], arrivals: Sequence[float]
) -> tuple[Chunk, ...]:
    """Chunks from (prompt_idx, num_computed_tokens, time of its event, end) and the times of all events.

    No event says that a chunk begins. The loop does one thing at a time, so it began when the event before
    its own happened, or when its request arrived, whichever was later.
    """
    chunks, computed = [], dict.fromkeys(range(len(arrivals)), 0)
    for idx, num_computed, told_s, end_s in prefills:
        before_s = max((time_s for time_s in event_s if time_s < told_s), default=0.0)
        chunks.append(Chunk(idx, num_computed - computed[idx], max(before_s, arrivals[idx]), end_s))
        computed[idx] = num_computed
    return tuple(chunks)
