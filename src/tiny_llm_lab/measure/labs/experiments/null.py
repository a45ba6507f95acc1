"""`null`: the traffic of `compare` with prompts that no budget cuts, so that nothing should change."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.labs.effect import claimed, effect_of
from tiny_llm_lab.measure.labs.experiments import compare
from tiny_llm_lab.measure.labs.lab import BUDGET, Lab
from tiny_llm_lab.measure.labs.result import Finding

_TOKENS: Final = 120
_METRICS: Final = {"ITL p99": "itl_p99_s", "TTFT p50": "ttft_p50_s", "Throughput": "output_tokens_per_s"}


def finding(rows: Sequence[Row]) -> Finding:
    """Chunks against none: no effect is expected of any metric."""
    off, chunked = rows[0], rows[-1]
    effects = [effect_of(name, chunked, off, key) for name, key in _METRICS.items() if len(rows) > 1]
    message = f"A budget of {BUDGET} cuts no prompt of {_TOKENS} tokens"
    claims = [claimed(f"{each.name}: no effect", each, "none") for each in effects]
    return Finding(["; ".join([message, *map(str, effects)]) + "."], claims)


LAB: Final[Lab] = replace(
    compare.LAB,
    name="null",
    question="What do chunks change if no prompt is long enough to be cut?",
    requests=partial(compare.requests_of, tokens=_TOKENS),
    facts=partial(compare.facts, tokens=_TOKENS),
    finding=lambda m: finding(m.rows),
)
