"""The fuzz driver under the compiler's sanitizers: `python tests/kernels/sanitize.py --help`."""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import tiny_llm_ref
from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import CPP, build, kernel_library
from tiny_llm_lab.types import UserError

FOLDER = Path(tiny_llm_ref.__file__).parent / "kernels"
# -O1 keeps the lines of a report true and the build short; "none" is what users run.
_SANITIZERS = {
    "address": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g", "-fsanitize=thread"),
    "none": (),
}
# The arithmetic of 16 lanes on machines of 8: the compiler makes two vectors of one.
LANES16 = isa.Isa("lanes16", 16, ("-march=x86-64-v3", "-Wno-psabi"))


def fuzz_program(copy, sanitizer, folder=FOLDER):
    """The driver with the kernels of `folder` for one instruction set."""
    flags = _SANITIZERS[sanitizer]
    kernels = kernel_library(folder, copy, flags)
    own = (Path(__file__).with_name("fuzz.cpp"), CPP / "thread_pool.cpp")
    sources = (*kernels.sources, *((path, kernels.sources[0][1]) for path in own))
    what = f"the fuzz driver for {copy.name}, sanitizer {sanitizer}"
    return replace(kernels, name="fuzz", sources=sources, link=flags, what=what, is_program=True)


def fuzz(program, seed, calls, emulator=()):
    """Call `calls` operators from `seed` on; what the driver or a sanitizer finds is an exit code."""
    command = [*emulator, str(program), str(seed), str(calls)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
    )


def main():
    copies = {copy.name: copy for copy in (*isa.ISAS, LANES16)}
    runnable = [copy.name for copy in isa.available()]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", nargs="+", choices=copies, default=runnable, help="default: all that run")
    parser.add_argument("--sanitizer", nargs="+", choices=_SANITIZERS, default=list(_SANITIZERS))
    parser.add_argument("--calls", type=int, default=2000, help="calls of operators in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--emulator",
        default="",
        help="a command before the program, for a CXX that compiles for another machine",
    )
    args = parser.parse_args()
    failed = 0
    for name in args.isa:
        for sanitizer in args.sanitizer:
            done = fuzz(
                build(fuzz_program(copies[name], sanitizer)),
                args.seed,
                args.calls,
                shlex.split(args.emulator),
            )
            failed += done.returncode != 0
            print(
                f"{'FAILED' if done.returncode else 'ok'}: {name}, sanitizer {sanitizer}, {args.calls} calls"
            )
            print(done.stdout + (done.stderr[-4000:] if done.returncode else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
