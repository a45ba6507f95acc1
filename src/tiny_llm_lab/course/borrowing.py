"""Puts files of the reference into the learner's package on import; writes nothing.

A borrowed file is executed under the learner's name for it, so its relative imports are of the learner's
package, and every class is there once.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tiny_llm_lab.course.source import STUB
from tiny_llm_lab.runtime.console.talk import did_you_mean, log
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES


def borrow_files(files: Sequence[str], solution: str) -> None:
    """Make `import tiny_llm` take these files, such as "layers/attention.py", from the reference.

    A file of the learner's without a stub is left in use, and said so. Raises UserError for another solution,
    and for anything but a Python file of the reference.
    """
    if solution != "mine":
        raise UserError(f"--borrow completes your own package: use --solution mine, not {solution}")
    mine, theirs = _folder("mine"), _folder("ref")
    for name in files:
        _check(name, theirs)
    borrowed = [name for name in files if not _is_written(mine / name)]
    for name in files:
        done = "we use the reference's file" if name in borrowed else "you have written yours, so we use it"
        log(f"--borrow {name}: {done}")
    modules = {_module(name): theirs / name for name in borrowed}
    if loaded := [name for name in modules if name in sys.modules]:
        raise UserError(f"{loaded[0]} is already imported: borrow before a solution is loaded")
    sys.meta_path.insert(0, _Borrowed(modules))


@dataclass(frozen=True)
class _Borrowed(MetaPathFinder):
    """Finds modules by their full names in other files than their package has."""

    paths: Mapping[str, Path]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self.paths.get(fullname)
        return None if found is None else importlib.util.spec_from_file_location(fullname, found)


def _check(name: str, theirs: Path) -> None:
    if Path(name).suffix in (".cpp", ".h", ".metal"):
        raise UserError(
            f"--borrow {name}: all C++ and Metal compiles from one folder: leave this out, and set "
            "TINY_LLM_KERNELS=mlx or off to run without yours"
        )
    names = [path.relative_to(theirs).as_posix() for path in theirs.rglob("*.py")]
    if name not in names or name.endswith("__init__.py"):
        cure = did_you_mean(name, names, "choose one such as layers/attention.py", cutoff=0.3)
        raise UserError(f"--borrow {name}: the reference does not have this file: {cure}")


def _is_written(path: Path) -> bool:
    return path.exists() and not STUB.search(path.read_text(encoding="utf-8"))


def _module(name: str) -> str:
    return f"{PACKAGES['mine']}.{name.removesuffix('.py').replace('/', '.')}"


def _folder(solution: str) -> Path:
    spec = importlib.util.find_spec(PACKAGES[solution])
    if spec is None or spec.origin is None:
        raise UserError(f"{PACKAGES[solution]} is not in this checkout: choose another --solution")
    return Path(spec.origin).parent
