"""What a lab found: samples, our conclusion from them, and what others claim."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.report import Section

SCHEMA: Final = 1
Verdict = Literal["confirmed", "refuted", "not measurable"]
Draw = Callable[[Figure], None]


@dataclass(frozen=True)
class Claim:
    """A statement that the lab tests, and its measurement."""

    text: str
    verdict: Verdict
    measured: str


def judged(text: str, holds: bool | None, measured: str) -> Claim:
    """A claim that holds, does not, or cannot be measured here (None)."""
    verdict: Verdict = "not measurable" if holds is None else "confirmed" if holds else "refuted"
    return Claim(text, verdict, measured)


@dataclass(frozen=True)
class Finding:
    """What the samples show: sentences, and claims with verdicts. `problem` says why they show nothing."""

    conclusion: Sequence[str]
    claims: Sequence[Claim] = ()
    problem: str | None = None


@dataclass(frozen=True)
class LabResult:
    """One lab: its table, its finding, and how to draw it."""

    name: str
    question: str
    section: Section
    finding: Finding
    draw: Draw
    skipped: Sequence[str] = ()  # variants that could not run, and why

    def to_json(self, command: str, settings: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
        """Everything but the drawing; times in seconds."""
        return {
            "schema": SCHEMA,
            "lab": self.name,
            "question": self.question,
            "command": command,
            "settings": dict(settings),
            "host": dict(host),
            "is_valid": self.finding.problem is None,
            "problem": self.finding.problem,
            "conclusion": list(self.finding.conclusion),
            "claims": [asdict(claim) for claim in self.finding.claims],
            "skipped": list(self.skipped),
            "section": self.section.to_json(),
        }
