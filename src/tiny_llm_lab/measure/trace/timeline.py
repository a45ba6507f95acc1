"""What a traced run shows: the tokens and the waiting of every request, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

from tiny_llm_lab.measure.trace.requests import TraceRequest

Kind = Literal["prefill", "decode", "waiting"]

# Drawn to scale with a budget further above than this, all bars would be flat.
_OFF_SCALE = 4
_LONGEST_NAME = 16


def short_name(name: str) -> str:
    """`name` in at most 16 columns; the end stays, because numbered names differ there."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:8]}…{name[-7:]}"


class Cell(NamedTuple):
    """What one request did in one step: computed `num_tokens`, or waited (0)."""

    step: int
    kind: Kind
    num_tokens: int


@dataclass(frozen=True)
class Timeline:
    """A finished run: `steps` has one {name: tokens} a step, as `trace_run` returns them."""

    requests: Sequence[TraceRequest]
    steps: Sequence[Mapping[str, int]]
    budget: int  # tokens that a step may have

    @cached_property
    def totals(self) -> list[int]:
        """The tokens of each step."""
        return [sum(step.values()) for step in self.steps]

    @cached_property
    def prefill_totals(self) -> list[int]:
        """The prompt tokens of each step."""
        totals = [0] * len(self.steps)
        for cell in chain.from_iterable(map(self.cells, self.requests)):
            totals[cell.step] += cell.num_tokens * (cell.kind == "prefill")
        return totals

    @cached_property
    def largest_chunk(self) -> int:
        """The most tokens of one request in a step."""
        return max(max(step.values(), default=0) for step in self.steps)

    @cached_property
    def shows_budget(self) -> bool:
        """Whether the budget is near enough to the largest step to be drawn to scale with it."""
        return self.budget <= _OFF_SCALE * max(self.totals)

    @cached_property
    def top(self) -> int:
        """The tokens at the top of the totals: the budget, or the largest step."""
        return self.budget if self.shows_budget else max(self.totals)

    def cells(self, request: TraceRequest) -> Iterator[Cell]:
        """One cell a step, from the request's arrival to its last token."""
        num_computed, all_tokens = 0, request.prompt_len + request.max_tokens - 1
        for step in range(request.arrival_step, len(self.steps)):
            if num_computed >= all_tokens:
                return
            num_tokens = self.steps[step].get(request.name, 0)
            # A chunk never holds both: a prompt's last chunk ends where its answer begins.
            kind: Kind = "prefill" if num_computed < request.prompt_len else "decode"
            num_computed += num_tokens
            yield Cell(step, kind if num_tokens else "waiting", num_tokens)

    def ttft_steps(self, request: TraceRequest) -> int:
        """Steps from the arrival to the first token, the step that brings it included."""
        last = max(cell.step for cell in self.cells(request) if cell.kind == "prefill")
        return last - request.arrival_step + 1

    def decode_costs(self, request: TraceRequest) -> list[int]:
        """All tokens of each step that brought the request a token, the first token excepted."""
        return [self.totals[cell.step] for cell in self.cells(request) if cell.kind == "decode"]

    def worst_stall(self) -> int:
        """The most tokens that were computed between two tokens of one request; 0 if none got a second."""
        worst = 0
        for request in self.requests:
            waited = 0
            for cell in self.cells(request):
                # Before its first token a request doesn't stall: that wait is its TTFT.
                has_first = cell.step >= request.arrival_step + self.ttft_steps(request)
                waited += self.totals[cell.step] * has_first
                if cell.kind == "decode":
                    worst, waited = max(worst, waited), 0
        return worst

    def as_json(self) -> dict[str, object]:
        """The requests with what the run was for each, the steps and their totals."""
        requests = [
            asdict(each) | {"ttft_steps": self.ttft_steps(each), "decode_step_costs": self.decode_costs(each)}
            for each in self.requests
        ]
        return {"requests": requests, "steps": self.steps, "totals": self.totals}
