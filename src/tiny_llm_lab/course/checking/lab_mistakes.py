"""Known mistakes of the lab: each is made in a copy of the repository, where the tests it names must fail.

Each is tested in a new process: the tools that try the mistakes of solutions are part of the lab themselves.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.checking.mistakes import TIME_LIMIT, Verdict
from tiny_llm_lab.types import UserError

_LIMIT_S = 300.0
_NOT_COPIED = (".*", "__pycache__", "build", "out", "output")
# Python that cannot run would fail any test.
_BROKEN = re.compile(r"\b(NameError|UnboundLocalError|SyntaxError|IndentationError)\b")


@dataclass(frozen=True)
class LabMistake:
    """`find`, which occurs once in `file` of src/tiny_llm_lab, becomes `swap`; `tests` must fail."""

    tests: str
    says: str
    file: str
    find: str
    swap: str

    def apply(self, package: Path) -> None:
        """Make the mistake in a copy of the lab. Raises UserError when it no longer fits."""
        path = package / self.file
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        if source.count(self.find) != 1:
            raise UserError(
                f"stale mistake ({self.says}): its `find` occurs {source.count(self.find)} times in "
                f"{self.file}, not once; mend it in known_mistakes.toml below tests/lab"
            )
        path.write_text(source.replace(self.find, self.swap), encoding="utf-8")


@dataclass(frozen=True)
class LabFinding:
    """The verdict on one mistake; `by` is the test that failed, or the reason."""

    mistake: LabMistake
    verdict: Verdict
    by: str

    def __str__(self) -> str:
        return f"{self.verdict.value:<7}  {self.mistake.file}  {self.mistake.says}  ({self.by})"


def lab_mistakes(root: Path) -> list[LabMistake]:
    """Those in known_mistakes.toml below tests/lab of the repository at `root`.

    Raises UserError for a malformed one.
    """
    found = []
    for path in sorted((root / "tests" / "lab").rglob("known_mistakes.toml")):
        try:
            rows = tomllib.loads(path.read_text(encoding="utf-8")).get("mistake", [])
            found += [LabMistake(**row) for row in rows]
        except (TypeError, tomllib.TOMLDecodeError) as error:
            reason = str(error).removeprefix("LabMistake.__init__() ")
            raise UserError(f"{path.relative_to(root)}: {reason}") from None
    return found


def try_lab_mistakes(root: Path, mistakes: list[LabMistake]) -> Iterator[LabFinding]:
    """Run the tests against each mistake, in order, as many at a time as there are cores, two at most."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        named = sorted({mistake.tests for mistake in mistakes})
        # Tests that fail in a copy anyway would catch everything.
        sound = dict(zip(named, pool.map(lambda tests: _verdict(root, tests), named), strict=True))
        for mistake, (verdict, by) in zip(
            mistakes, pool.map(lambda mistake: _verdict(root, mistake.tests, mistake), mistakes), strict=True
        ):
            is_sound = sound[mistake.tests][0] is Verdict.MISSED
            reason = f"without the mistake as well: {sound[mistake.tests][1]}"
            yield LabFinding(mistake, *((verdict, by) if is_sound else (Verdict.INVALID, reason)))


def _verdict(root: Path, tests: str, mistake: LabMistake | None = None) -> tuple[Verdict, str]:
    """What `tests` make of a copy of the repository, with a mistake or as it is."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        if mistake is not None:
            mistake.apply(copy / "src" / "tiny_llm_lab")
        return _judged(copy, tests)


def _judged(copy: Path, tests: str) -> tuple[Verdict, str]:
    command = [sys.executable, "-m", "pytest", "-p", "tiny_llm_lab.course.plugin", "--solution", "ref"]
    options = ["-x", "-q", "--no-header", "--tb=no", "-rfE", "--color=no", "-p", "no:cacheprovider", "--full"]
    paths = [str(copy / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [*command, *options, *tests.split()],
            cwd=copy,
            env=env,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Verdict.CAUGHT, TIME_LIMIT
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode == 0:
        return Verdict.MISSED, done.stdout.strip().splitlines()[-1]
    if done.returncode < 0 or (done.returncode == 1 and not lines):
        return Verdict.CAUGHT, "the end of the process"
    if done.returncode != 1 or _BROKEN.search(lines[0]):
        return Verdict.INVALID, (lines or (done.stdout + done.stderr).strip().splitlines() or ["?"])[-1]
    return Verdict.CAUGHT, lines[0].partition(" - ")[0].rpartition("::")[2]
