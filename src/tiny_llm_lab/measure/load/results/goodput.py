"""Which requests count as good: those within the targets of --goodput."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tiny_llm_lab.runtime.metrics import Slo, e2e_s, tpot_s
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
