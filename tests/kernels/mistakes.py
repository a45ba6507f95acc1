"""Do the tests notice the known mistakes of the kernels? Run me as a program; it takes a few minutes."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tiny_llm_ref
from tiny_llm_lab.native import isa
from tiny_llm_lab.native.build import HERE, build, kernel_library
from tiny_llm_lab.types import UserError

HERE_TESTS = Path(__file__).parent
FOLDER = Path(tiny_llm_ref.__file__).parent / "kernels"
_PLAIN = next(copy for copy in isa.ISAS if copy.name == "plain")


@dataclass(frozen=True)
class KernelMistake:
    """`find`, which occurs once in `file`, becomes `swap`; `tests` must fail."""

    says: str
    file: str
    find: str
    swap: str
    tests: str

    def source(self) -> Path:
        """The file with the mistake yet to be made."""
        places = (FOLDER / self.file, HERE / "include" / self.file)
        return next(path for path in places if path.exists())

    def make(self, folder: Path) -> None:
        """Put the wrong file among the kernels in `folder`, where it is found before the right one."""
        (folder / self.file).write_text(
            self.source().read_text(encoding="utf-8").replace(self.find, self.swap)
        )


def known_mistakes() -> list[KernelMistake]:
    text = (HERE_TESTS / "known_mistakes.toml").read_text(encoding="utf-8")
    return [KernelMistake(**fields) for fields in tomllib.loads(text)["mistake"]]


def failed_tests(library: Path, tests: str) -> str:
    """How `tests` fail on a compiled library: by their last line or a signal; empty when they pass."""
    env = {**os.environ, "TINY_LLM_TESTED_KERNELS": str(library)}
    command = [sys.executable, "-m", "pytest", "--solution", "ref", "-x", "-q", "--no-header", "--tb=no"]
    root = HERE_TESTS.parents[1]
    done = subprocess.run(
        [*command, str(HERE_TESTS / tests)], cwd=root, env=env, capture_output=True, text=True
    )
    if done.returncode < 0:  # a wrong kernel may well read what is not its own
        return f"ended by signal {-done.returncode}"
    if done.returncode not in (0, 1):
        raise UserError(f"{tests} cannot be run\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def main() -> int:
    mistakes = known_mistakes()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, mistake in enumerate(mistakes):
            folder = Path(scratch) / str(number)
            shutil.copytree(FOLDER, folder)
            mistake.make(folder)
            own = os.environ.get("TINY_LLM_CACHE")
            os.environ["TINY_LLM_CACHE"] = scratch  # no use for these libraries later
            library = build(kernel_library(folder, _PLAIN, ("-O1",)))
            os.environ.pop("TINY_LLM_CACHE") if own is None else os.environ.update(TINY_LLM_CACHE=own)
            is_caught = bool(failed_tests(library, mistake.tests))
            missed += not is_caught
            print(f"{'caught' if is_caught else 'MISSED'}  {mistake.file}: {mistake.says}", flush=True)
    print(f"{len(mistakes) - missed} of {len(mistakes)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
