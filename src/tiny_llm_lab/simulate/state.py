"""One request of a simulated replica."""

import math
from dataclasses import dataclass

from tiny_llm_lab.types.serving import TokenSequence

from .traffic import SimRequest


@dataclass(slots=True)
class SimRequestState:
    """A request in progress: the scheduler's half, and the times of its tokens."""

    request: SimRequest
    scheduled: TokenSequence
    num_left: int  # tokens of the answer
    first_s: float | None = None
    last_s: float = math.nan
    num_late_gaps: int = 0
