"""The record of grading, kept in the clone: how each task's last run ended, hints shown, answers given."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

RECORD = Path(".tiny-llm") / "progress.json"
_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """How one run of a task's tests ended: counts of tests, and the code and time of the run."""

    passed: int
    failed: int
    todo: int
    ran_all: bool  # whether every test of the task ran
    source: str  # `TaskSources.hash_of` at the time
    at: str  # ISO 8601, local time
    passed_at: str = ""  # when the task passed for the first time, "" = not yet

    @property
    def is_pass(self) -> bool:
        """Whether all tests of the task ran and passed. A skipped test is not a failure."""
        return self.ran_all and self.passed > 0 and not self.failed and not self.todo


@dataclass(frozen=True)
class Record:
    """By task id: outcomes, how many hints were shown, and the hash of the answer that was given.

    `drills` says of each drill that was answered, by its mistake's key, whether it was right once.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    drills: Mapping[str, bool] = field(default_factory=dict)

    def with_outcomes(self, new: Mapping[str, Outcome]) -> "Record":
        """The record after a run.

        A run of some tests only that found nothing wrong says less than a full run of the same code before
        it, which stays.
        """
        kept = dict(self.outcomes)
        for task, outcome in new.items():
            before = kept.get(task)
            first = before.passed_at if before else ""
            says_less = not outcome.ran_all and not outcome.failed and not outcome.todo
            if before and before.is_pass and says_less and before.source == outcome.source:
                continue
            kept[task] = replace(outcome, passed_at=first or (outcome.at if outcome.is_pass else ""))
        return replace(self, outcomes=kept)

    def with_hints(self, task: str, shown: int) -> "Record":
        """The record after `shown` hints of a task."""
        return replace(self, hints={**self.hints, task: shown})

    def with_given(self, sources: Mapping[str, str]) -> "Record":
        """The record after tasks got their answers; `sources` has what `TaskSources.hash_of` says of each."""
        return replace(self, given={**self.given, **sources})

    def with_drill(self, key: str, is_right: bool) -> "Record":
        """The record after an answer to a drill: one that was right stays so."""
        return replace(self, drills={**self.drills, key: is_right or self.drills.get(key, False)})


def load_record(root: Path) -> tuple[Record, str]:
    """The record of the clone at `root`, and a line to tell where its file was not readable."""
    path = root / RECORD
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']}")
        outcomes = {str(task): Outcome(**row) for task, row in data["outcomes"].items()}
        hints = {str(task): int(shown) for task, shown in data["hints"].items()}
        # An older record has no answers, and no drills.
        given = {str(task): str(source) for task, source in data.get("given", {}).items()}
        drills = {str(key): bool(is_right) for key, is_right in data.get("drills", {}).items()}
    except FileNotFoundError:
        return Record(), ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Record(), f"cannot read {RECORD}: starting a new record"
    return Record(outcomes, hints, given, drills), ""


def save_record(root: Path, record: Record) -> None:
    """Write the record in one piece: a reader finds the old one or the new one."""
    path = root / RECORD
    path.parent.mkdir(exist_ok=True)
    outcomes = {task: asdict(outcome) for task, outcome in record.outcomes.items()}
    rest = {"hints": dict(record.hints), "given": dict(record.given), "drills": dict(record.drills)}
    data = {"version": _VERSION, "outcomes": outcomes, **rest}
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1) + "\n")
    Path(unfinished).replace(path)
