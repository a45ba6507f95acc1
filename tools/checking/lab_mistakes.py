"""Known mistakes of the lab: each is made in a copy of the repository, where the tests it names must fail.

Each is tested in a new process: the tools that try the mistakes of solutions are part of the lab themselves.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.course.grading.sandbox import TIME_LIMIT
from tiny_llm_lab.course.mistake import Mistake, read_mistakes
from tools.checking.mistakes import Finding, Verdict

_LIMIT_S = 300.0
_NOT_COPIED = (".*", "__pycache__", "build", "out", "output")
_PYTEST_ARGS = "-x -q --no-header --tb=no -rfE --color=no -p no:cacheprovider --full".split()
# Python that cannot run would fail any test.
_BROKEN = re.compile(r"\b(NameError|UnboundLocalError|SyntaxError|IndentationError)\b")


def lab_mistakes(root: Path) -> list[Mistake]:
    """Those in known_mistakes.toml below tests/lab; their files are below src/tiny_llm_lab."""
    paths = sorted((root / "tests" / "lab").rglob("known_mistakes.toml"))
    return [mistake for path in paths for mistake in read_mistakes(path)]


def try_lab_mistakes(root: Path, mistakes: list[Mistake]) -> Iterator[Finding]:
    """Run the tests against each mistake, in order, as many at a time as there are cores, two at most."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        named = sorted({mistake.tests for mistake in mistakes})
        # Tests that fail in a copy anyway would catch everything.
        sound = dict(zip(named, pool.map(lambda tests: _verdict(root, tests), named), strict=True))
        found = pool.map(lambda mistake: _verdict(root, mistake.tests, mistake), mistakes)
        for mistake, (verdict, by) in zip(mistakes, found, strict=True):
            verdict_without, by_without = sound[mistake.tests]
            if verdict_without is not Verdict.MISSED:
                verdict, by = Verdict.INVALID, f"without the mistake as well: {by_without}"
            yield Finding(mistake, verdict, by)


def _verdict(root: Path, tests: str, mistake: Mistake | None = None) -> tuple[Verdict, str]:
    """What `tests` make of a copy of the repository, with a mistake or as it is."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        if mistake is not None:
            path = copy / "src" / "tiny_llm_lab" / mistake.file
            path.write_text(mistake.apply(path), encoding="utf-8")
        return _judged(copy, tests)


def _judged(copy: Path, tests: str) -> tuple[Verdict, str]:
    command = [*pytest_command("ref"), *_PYTEST_ARGS, *tests.split()]
    env = environment(copy / "src")
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return Verdict.CAUGHT, TIME_LIMIT
    said = done.stdout.strip().splitlines()
    failed = [line for line in said if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode == 0:
        return Verdict.MISSED, said[-1]
    if done.returncode < 0 or (done.returncode == 1 and not failed):
        return Verdict.CAUGHT, "the end of the process"
    if done.returncode != 1 or _BROKEN.search(failed[0]):
        return Verdict.INVALID, (failed or said or done.stderr.splitlines() or ["?"])[-1]
    return Verdict.CAUGHT, failed[0].partition(" - ")[0].rpartition("::")[2]
