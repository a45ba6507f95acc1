"""One part of a report: a command in a process of its own, and its outcome."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tiny_llm_lab.measure.doctor.finding import without_home
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.types import Clock

Document = Mapping[str, Any]
Status = Literal["done", "failed", "interrupted", "left out"]
_TWICE_S: Final = 2.0  # a second Ctrl-C within this time ends the report
_LAST_LINES, _LONGEST_SAID = 3, 300


@dataclass(frozen=True)
class Part:
    """A command; `says_json`: the last line of its stdout is a document, and otherwise a summary.

    `lacks`: why it can't be run here, if a tool that it needs is missing.
    """

    title: str
    command: Sequence[str]
    limit_s: float
    says_json: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    lacks: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part. `said`: its last lines, from stderr if it failed."""

    part: Part
    status: Status
    seconds: float = 0.0
    said: str = ""
    document: Document | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the command's own paths."""
        own = {"title": self.part.title, "status": self.status, "seconds": round(self.seconds, 1)}
        return own | {"said": self.said, "document": self.document}


def outcomes(parts: Sequence[Part], limit_s: float, clock: Clock = time.monotonic) -> Iterator[Outcome]:
    """Run the parts in order until `limit_s` has passed; the rest goes on after one that fails.

    Ctrl-C ends the part that runs, and a second one within two seconds leaves the others out.
    """
    start_s, interrupted_s, is_ended = clock(), -_TWICE_S, False
    for number, part in enumerate(parts, 1):
        left_s = limit_s - (clock() - start_s)
        if part.lacks:
            yield Outcome(part, "left out", said=part.lacks)
            continue
        if is_ended or left_s <= 0:
            yield Outcome(part, "left out", said="interrupted" if is_ended else "the time was up")
            continue
        log(f"{number} of {len(parts)}: {part.title} ...")
        began_s = clock()
        try:
            status, message, document = _run(part, min(left_s, part.limit_s))
        except KeyboardInterrupt:
            is_ended, interrupted_s = clock() - interrupted_s < _TWICE_S, clock()
            then = "left out" if is_ended else "next; a second Ctrl-C within two seconds ends the report"
            log(f"interrupted; the rest is {then}")
            status, message, document = "interrupted", "", None
        if status == "failed":
            log(f"failed: {message}")
        yield Outcome(part, status, clock() - began_s, message, document)


def _run(part: Part, limit_s: float) -> tuple[Status, str, Document | None]:
    process = subprocess.Popen(
        part.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **part.environment},
        start_new_session=True,  # with its own children, so that none of them goes on
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "failed", f"took more than {limit_s:.0f} s", None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    document = _document(out) if part.says_json else None
    is_done = document is not None if part.says_json else process.returncode == 0
    message = _last(err if part.says_json else out or err)
    return "done" if is_done else "failed", message, document


def _document(out: str) -> Document | None:
    """The last line, if it is an object; a command that finds something wrong prints it as well."""
    try:
        result = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return result if isinstance(result, dict) else None


def _last(text: str) -> str:
    return without_home(" / ".join(text.strip().splitlines()[-_LAST_LINES:]))[-_LONGEST_SAID:]
