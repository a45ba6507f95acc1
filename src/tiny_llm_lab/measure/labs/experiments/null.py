"""`null`: the traffic of `compare` with prompts that no budget cuts, so that nothing should change."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.labs.effect import claimed, effect_of
from tiny_llm_lab.measure.labs.experiments import compare
from tiny_llm_lab.measure.labs.lab import BUDGET, Lab
from tiny_llm_lab.measure.labs.result import Finding

_TOKENS: Final = 120


def finding(rows: Sequence[Row]) -> Finding:
    """Chunks against none: no effect is expected of any metric."""
    if len(rows) < 2:
        return Finding([f"A budget of {BUDGET} cuts no prompt of {_TOKENS} tokens."])
    off, chunked = rows[0], rows[-1]
    metrics = {"ITL p99": "itl_p99_s", "TTFT p50": "ttft_p50_s", "Throughput": "output_tokens_per_s"}
    effects = {name: effect_of(name, chunked, off, key) for name, key in metrics.items()}
    said = f"{chunked.name} against {off.name}: {'; '.join(map(str, effects.values()))}."
    claims = [claimed(f"{name}: no effect", effect, "none") for name, effect in effects.items()]
    return Finding([f"A budget of {BUDGET} cuts no prompt of {_TOKENS} tokens. {said}"], claims)


LAB: Final[Lab] = replace(
    compare.LAB,
    name="null",
    question="What do chunks change if no prompt is long enough to be cut?",
    requests=compare.traffic_of(_TOKENS),
    facts=compare.facts_of(_TOKENS),
    finding=lambda m: finding(m.rows),
)
