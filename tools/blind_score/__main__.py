"""The share of errors nobody listed that the tests find: `python -m tools.blind_score PART`.

A fixed seed draws mutants from all that mutmut makes of the files of a part. Each runs in a copy of the
checkout, first against the tests that run its line, then against all of the part's. `strict=True` of a zip
stays as it is: nothing differs without it unless something else is wrong. mutmut is in no lock:
CONTRIBUTING.md says how to add it.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.types import UserError
from tools.blind_score.contexts import LineMap

_LAB: Final = "src/tiny_llm_lab"
# By part: where its code is, and which tests judge it, the likeliest first.
PARTS: Final = {
    "reference": (
        ("src/tiny_llm_ref",),
        (*(f"tests/week_{week}" for week in (1, 2, 3, 4)), "tests/kernels", "tests/test_fuzz.py"),
    ),
    "native": (
        (f"{_LAB}/runtime/native",),
        ("tests/lab/operators", "tests/kernels", "tests/week_2", "tests/lab"),
    ),
    "models": ((f"{_LAB}/runtime/models",), ("tests/lab/models", "tests/test_default_model.py", "tests/lab")),
    "server": (
        (f"{_LAB}/serving/server", f"{_LAB}/serving/async_engine"),
        (
            *("tests/lab/server", "tests/lab/engine_process", "tests/lab/as_reported", "tests/lab/offline"),
            *("tests/lab/test_async_llm.py", "tests/lab/test_cli.py", "tests/lab/test_memory_keeper.py"),
        ),
    ),
}
_KEPT: Final = (cst.Import, cst.ImportFrom, cst.Annotation, cst.Decorator)
_PARALLEL: Final = ("-n2", "--dist", "worksteal")
_MOST_FAILED: Final = 20
_LIMIT_S: Final = 400.0  # a mutant that does not end is found
_IGNORED: Final = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".pdmw", ".*_cache", "lab-results")


@dataclass(frozen=True)
class Mutant:
    """One node of a file, and what takes its place."""

    file: str
    line: int
    module: cst.Module
    node: cst.CSTNode
    changed: cst.CSTNode

    def __str__(self) -> str:
        before, after = (cst.Module([]).code_for_node(each).strip() for each in (self.node, self.changed))
        return f"{self.file}:{self.line}: {before!r} -> {after!r}"

    @property
    def source(self) -> str:
        """The whole file with the change."""
        return cast(cst.Module, self.module.deep_replace(self.node, self.changed)).code


def mutants(root: Path, file: str) -> Iterator[Mutant]:
    """Every mutant of a Python file; docstrings, annotations and imports stay as they are."""
    wrapper = cst.MetadataWrapper(cst.parse_module((root / file).read_text(encoding="utf-8")))
    places, module = wrapper.resolve(cst.metadata.PositionProvider), wrapper.module
    pending: list[cst.CSTNode] = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, _KEPT) or _is_docstring(node) or _is_strict(node):
            continue
        for kind, operator in mutation_operators:
            for changed in operator(node) if isinstance(node, kind) else ():
                if _without_strict(node) != _without_strict(changed):
                    yield Mutant(file, places[node].start.line, module, node, changed)
        pending += reversed(node.children)


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)


def _is_strict(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"


def _without_strict(node: cst.CSTNode) -> str:
    return re.sub(r"strict=True|[,\s]", "", cst.Module([]).code_for_node(node))


def drawn(root: Path, folders: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, drawn evenly from all mutants of all files in `folders`."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    every = [mutant for path in paths for mutant in mutants(root, path.relative_to(root).as_posix())]
    return random.Random(seed).sample(every, min(count, len(every)))


class Trial:
    """A copy of the checkout in which one mutant at a time runs against the tests of a part."""

    def __init__(self, root: Path, scratch: Path, part: str) -> None:
        """Copies the checkout and runs the part's tests as they are, to learn which lines each runs.

        Tests that fail there, as those that need a clone, are left out and named. Raises UserError for many.
        """
        self._copy, self._map = scratch / "copy", scratch / "map"
        self._folders, self._tests = PARTS[part]
        self._map.mkdir()
        shutil.copytree(root, self._copy, ignore=_IGNORED)
        self._fails([*_PARALLEL, "-p", "tools.blind_score.contexts", *self._tests], limit_s=None)
        self._lines = LineMap(self._map)
        print("left out, failing without a mutant:", *self._lines.failed or ["none"], file=sys.stderr)
        if len(self._lines.failed) > _MOST_FAILED:
            raise UserError("too many tests fail without any mutant: `./pdmw run test-ref` says which")
        self._whole = [*_PARALLEL, "-x", *(f"--deselect={name}" for name in self._lines.failed), *self._tests]

    def kills(self, mutant: Mutant) -> bool:
        """Whether a test fails with the mutant: first those that run its line, then all of the part."""
        path = self._copy / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.source, encoding="utf-8")
        try:
            likely = self._lines.tests_of(path, mutant.line)
            return (bool(likely) and self._fails(["-x", *likely])) or self._fails(self._whole)
        finally:
            path.write_text(before, encoding="utf-8")

    def _fails(self, arguments: Sequence[str], limit_s: float | None = _LIMIT_S) -> bool:
        command = [*pytest_command("ref"), "-q", "-p", "no:cacheprovider", *arguments]
        found = environment(self._copy / "src") | {
            "BLIND_SCORE_MAP": str(self._map),
            "BLIND_SCORE_CODE": "\n".join(str(self._copy / folder) for folder in self._folders),
        }
        try:
            done = subprocess.run(command, cwd=self._copy, env=found, capture_output=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def main() -> int:
    """Try the mutants of one part; print what survives, then one line of JSON."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    root = repository()
    survivors = []
    chosen = drawn(root, PARTS[args.part][0], args.count, args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(root, Path(scratch), args.part)
        for number, mutant in enumerate(chosen, 1):
            killed = trial.kills(mutant)
            survivors += [] if killed else [mutant]
            print(f"{number}/{len(chosen)} {'killed  ' if killed else 'SURVIVED'} {mutant}", file=sys.stderr)
    share = 1 - len(survivors) / len(chosen)
    found = {"part": args.part, "seed": args.seed, "count": len(chosen), "share": share}
    print(json.dumps(found | {"survivors": [str(each) for each in survivors]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
