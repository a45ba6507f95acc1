"""Made-up samples of labs."""

from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.labs.result import Finding
from tiny_llm_lab.measure.load.client import RequestRecord
from tiny_llm_lab.measure.traffic.request import LoadRequest


def row(name: str, **samples: float | tuple[float | None, ...]) -> Row:
    """A number alone is what each of three rounds has measured."""
    each = {key: value if isinstance(value, tuple) else (value,) * 3 for key, value in samples.items()}
    return Row(name, each)


def verdict(finding: Finding, start: str) -> str:
    [found] = [claim.verdict for claim in finding.claims if claim.text.startswith(start)]
    return found


def verdicts(finding: Finding) -> str:
    """What became of each claim, in order: yes, no, or - where it cannot be measured."""
    words = {"confirmed": "yes", "refuted": "no", "not measurable": "-"}
    return " ".join(words[claim.verdict] for claim in finding.claims)


def record(kind: str, send_s: float, *token_s: float) -> RequestRecord:
    return RequestRecord(LoadRequest("x", 1, len(token_s), kind), send_s, token_s[-1], token_s)
