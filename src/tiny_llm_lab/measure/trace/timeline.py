"""What a traced run shows: the tokens and the waiting of every request, step by step."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Final, Literal, NamedTuple

from tiny_llm_lab.types import UserError, require

FORM: Final = "NAME:ARRIVAL_STEP:PROMPT_LEN:MAX_TOKENS"
# A step is a column of the picture.
_MAX_STEPS: Final = 10_000


@dataclass(frozen=True)
class TraceRequest:
    """One request of a traced run, added before step `arrival_step` is planned; steps count from 0."""

    name: str
    arrival_step: int
    prompt_len: int
    max_tokens: int
    priority: int = 0  # lower = more urgent, with policy "priority"


def parse_request(text: str) -> TraceRequest:
    """NAME:ARRIVAL_STEP:PROMPT_LEN:MAX_TOKENS, and perhaps :PRIORITY. Raises UserError for anything else."""
    name, *numbers = text.split(":")
    are_numbers = all(re.fullmatch(r"\s*[+-]?[0-9]+\s*", number) for number in numbers)
    if len(numbers) not in (3, 4) or not are_numbers or not name.strip() or not name.isprintable():
        raise UserError(
            f"--request must be {FORM}, in numbers after the name, perhaps with :PRIORITY, not {text!r}"
        )
    return TraceRequest(name.strip(), *map(int, numbers))


@dataclass(frozen=True)
class Preset:
    """Requests, with a budget and a threshold that make a point."""

    description: str
    requests: Sequence[TraceRequest]
    budget: int
    threshold: int = 0
    note: str = ""  # what to read in the picture


PRESETS: Final = {
    "spike": Preset(
        "a long prompt arrives while another request decodes",
        [TraceRequest("decode", 0, 1, 16), TraceRequest("long", 1, 256, 2)],
        budget=257,
    ),
    "two-prompts": Preset(
        "two prompts that arrive together share the budget",
        [TraceRequest("first", 0, 200, 12), TraceRequest("second", 0, 120, 4)],
        budget=48,
        note="TTFT of prompts P1 and P2 with an even budget b and no threshold: n for one,\n"
        "n + ⌈(P1 + P2 − n·b) / (b − 1)⌉ for the other. fcfs: n = ⌈P1 / b⌉, the first's;\n"
        "fair: n = ⌈2·P / b⌉, the shorter's, which goes on decoding as in fcfs",
    ),
    "storm": Preset(
        "a long prompt arrives in each of five steps while two requests decode",
        [TraceRequest(f"victim-{i}", 0, 1, 60) for i in (1, 2)]
        + [TraceRequest(f"long-{i}", i, 256, 2) for i in range(1, 6)],
        budget=1024,
    ),
}


def check_requests(requests: Sequence[TraceRequest], max_len: int) -> None:
    """Raise UserError for equal names, and for requests that do not fit into `max_len` positions."""
    names = [request.name for request in requests]
    for request in requests:
        length = request.prompt_len + request.max_tokens - 1
        checks = {
            "two requests have this name: rename one": names.count(request.name) == 1,
            f"ARRIVAL_STEP must be 0 to {_MAX_STEPS}": 0 <= request.arrival_step <= _MAX_STEPS,
            "PROMPT_LEN and MAX_TOKENS must be 1 or more": min(request.prompt_len, request.max_tokens) >= 1,
            f"PROMPT_LEN + MAX_TOKENS - 1 is {length}, and the model has {max_len} positions": length
            <= max_len,
        }
        require(checks, f"request {request.name!r}: ")


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
        all_tokens = request.prompt_len + request.max_tokens - 1
        # What no step computed was in the prefix cache.
        num_computed = all_tokens - sum(step.get(request.name, 0) for step in self.steps)
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
            # Before its first token a request doesn't stall: that wait is its TTFT.
            waited, first = 0, request.arrival_step + self.ttft_steps(request)
            for cell in self.cells(request):
                waited += self.totals[cell.step] * (cell.step >= first)
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
