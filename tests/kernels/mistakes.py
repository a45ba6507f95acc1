"""Do the tests notice the known mistakes of the kernels? Run me as a program; it takes a few minutes."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import tiny_llm_ref
from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import CPP, CompileError, build, kernel_library
from tiny_llm_lab.types import UserError

HERE_TESTS = Path(__file__).parent
FOLDER = Path(tiny_llm_ref.__file__).parent / "kernels"
GIVEN = [CPP / name for name in ("draw.cpp", "experts.cpp")]  # compiled with every package's kernels


@dataclass(frozen=True)
class KernelMistake:
    """`find`, which occurs once in `file`, becomes `swap`: `tests` must fail on what `copy` gives."""

    says: str
    file: str
    find: str
    swap: str
    tests: str
    isas: tuple[str, ...] = ("plain",)  # those whose kernels contain the mistake

    def copy(self, runs):
        """The instruction set to try it on; None if this machine has none of them."""
        return next((copy for copy in runs if copy.name in self.isas), None)

    def source(self):
        """The file with the mistake yet to be made."""
        places = (FOLDER / self.file, CPP / "include" / self.file, CPP / self.file)
        return next(path for path in places if path.exists())

    def make(self, folder):
        """Put the wrong file among the kernels in `folder`, where it is found before the right one."""
        for path in [*(CPP / "include").glob("*.h"), *GIVEN]:  # each finds the others beside itself first
            shutil.copy(path, folder)
        (folder / self.file).write_text(
            self.source().read_text(encoding="utf-8").replace(self.find, self.swap)
        )


def known_mistakes():
    text = (HERE_TESTS / "known_mistakes.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)["mistake"]
    return [KernelMistake(**fields | {"isas": tuple(fields.get("isas", ["plain"]))}) for fields in found]


def failed_tests(library, tests):
    """How `tests` fail on a compiled library: by their last line or a signal; empty when they pass."""
    env = {**os.environ, "TINY_LLM_TESTED_KERNELS": str(library)}
    command = [sys.executable, *"-m pytest --solution ref --full -x -q --no-header --tb=no".split()]
    root = HERE_TESTS.parents[1]
    done = subprocess.run(
        [*command, str(HERE_TESTS / tests)], cwd=root, env=env, capture_output=True, text=True
    )
    if done.returncode < 0:  # a wrong kernel may well read what is not its own
        return f"ended by signal {-done.returncode}"
    if done.returncode not in (0, 1):
        raise UserError(f"{tests} cannot be run\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def verdict_of(mistake, copy, scratch):
    """What its tests say of the wrong kernels: caught, MISSED or NOT C++. `scratch` is an empty folder."""
    folder = scratch / "kernels"
    shutil.copytree(FOLDER, folder)
    mistake.make(folder)
    own = os.environ.get("TINY_LLM_CACHE")
    os.environ["TINY_LLM_CACHE"] = str(scratch)  # no use for these libraries later
    try:
        library = kernel_library(folder, copy, ("-O1",))
        sources = tuple(each for each in library.sources if each[0] not in GIVEN)
        built = build(replace(library, sources=sources))
    except CompileError as error:
        return f"NOT C++ ({error.args[0].splitlines()[1]})"
    finally:
        os.environ.pop("TINY_LLM_CACHE") if own is None else os.environ.update(TINY_LLM_CACHE=own)
    return "caught" if failed_tests(built, mistake.tests) else "MISSED"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a file's name, or of what is wrong")
    only = parser.parse_args().only
    mistakes = [each for each in known_mistakes() if only in f"{each.file}: {each.says}"]
    runs = isa.available()
    seen = Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for number, mistake in enumerate(mistakes):
            copy = mistake.copy(runs)
            if copy is None:
                verdict, why = "skipped", f" (this machine cannot run {' or '.join(mistake.isas)})"
            else:
                verdict = verdict_of(mistake, copy, Path(scratch) / str(number))
                why = "" if copy.name == "plain" else f" ({copy.name})"
            seen[verdict] += 1
            print(f"{verdict}  {mistake.file}: {mistake.says}{why}", flush=True)
    skipped = f", {seen['skipped']} skipped" if seen["skipped"] else ""
    print(f"{seen['caught']} of {len(mistakes)} caught{skipped}")
    return 0 if seen["caught"] + seen["skipped"] == len(mistakes) else 1


if __name__ == "__main__":
    sys.exit(main())
