"""Which requests a trace runs: presets, and what `--request` describes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.types import UserError

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
        for complaint, holds in checks.items():
            if not holds:
                raise UserError(f"request {request.name!r}: {complaint}")
