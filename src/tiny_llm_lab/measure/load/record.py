"""What became of the requests of a load run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.types import Timing

# How the tokens of an answer were counted: as the server says, by a local tokenizer, or one a chunk.
CountedBy = Literal["usage", "tokenizer", "chunks"]


@dataclass(frozen=True)
class Usage:
    """The server's own counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None  # None: the server does not say


@dataclass(frozen=True)
class RequestRecord:
    """One request as its client saw it; times are seconds since the start of the run."""

    request: LoadRequest
    send_s: float  # later than the scheduled arrival under a limit of concurrency
    end_s: float
    token_s: tuple[float, ...] = ()  # when each token was received; those of one read at the same time
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    counted_by: CountedBy = "chunks"
    error: str | None = None  # None: the answer is complete

    @property
    def timing(self) -> Timing:
        """Latencies from the moment of sending, as `vllm bench serve` tells them."""
        return Timing(self.send_s, self.token_s)

    @property
    def timing_from_arrival(self) -> Timing:
        """Latencies from the scheduled arrival: the wait for a free slot of the client counts."""
        return Timing(self.request.arrival_s, self.token_s)

    @property
    def num_prompt_tokens(self) -> int:
        return self.usage.prompt_tokens if self.usage else self.request.num_prompt_tokens


@dataclass(frozen=True)
class LoadRun:
    """All requests of one run, in the order in which they were given."""

    records: Sequence[RequestRecord]

    @property
    def completed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is None]

    @property
    def failed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is not None]

    @property
    def total_s(self) -> float:
        """From the start of the run to the end of its last request."""
        return max((record.end_s for record in self.records), default=0.0)

    @property
    def max_send_delay_s(self) -> float:
        """The longest that a request was sent after its scheduled arrival."""
        return max((record.send_s - record.request.arrival_s for record in self.records), default=0.0)

    def of_kind(self, kind: str) -> list[RequestRecord]:
        """The completed requests of one kind."""
        return [record for record in self.completed if record.request.kind == kind]


def timings(records: Iterable[RequestRecord]) -> list[Timing]:
    """The latencies of each record, from the moment of sending."""
    return [record.timing for record in records]
