"""What a Mac compiles, compiled and linked for one on any machine: `check --only for-mac`.

Zig's Clang stands in for Apple's, and the bridge is linked against the MLX of the wheel for a Mac that
pdm.lock names. Both come from the package registry. Nothing is run but the compiler. What it makes of the
Metal kernels is looked at by tests/peers/test_metal_registers.py, which has Zig here.
"""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.runtime.native.compiling import build as building
from tiny_llm_lab.runtime.native.compiling.isa import ISAS
from tiny_llm_lab.types.packages import PACKAGES

ZIG = "ziglang==0.17.1"
OLDEST = "macosx_14_0_arm64"
# Zig names processors and no architectures: each Mac is the first with what its flag asks for.
_CXX = """#!{python}
import os, sys
macs = {{"-march=armv8.2-a+fp16+bf16+i8mm": "-mcpu=apple_m2", "-march=armv8.2-a+dotprod": "-mcpu=apple_m1"}}
flags = [macs.get(each, each) for each in sys.argv[1:]]
os.execv({zig!r}, [{zig!r}, "c++", "-target", "aarch64-macos.14.0", *flags])
"""
_MACH_O_ARM64 = bytes.fromhex("cffaedfe0c000001")


def main() -> int:
    try:
        wrong = list(complaints(cache_folder() / "for-mac"))
    except (RuntimeError, building.BuildError) as error:
        wrong = [str(error)]
    print("\n".join(wrong) or "everything compiles and links for macOS 14")
    return 1 if wrong else 0


def complaints(folder: Path) -> Iterator[str]:
    """What does not compile for a Mac, or would not load there."""
    folder.mkdir(parents=True, exist_ok=True)
    cxx = folder / "c++"
    program = zig(folder)
    cxx.write_text(_CXX.format(python=sys.executable, zig=str(program)), encoding="utf-8")
    cxx.chmod(0o755)
    os.environ["CXX"] = str(cxx)
    kernels = building.kernels_folder(PACKAGES["ref"])
    assert kernels is not None
    yield from registers(program)
    mlx = wheel(folder)
    for library in libraries(kernels, mlx):
        made = building.build(library).read_bytes()
        if not made.startswith(_MACH_O_ARM64):
            yield f"{library.name} is not built for an arm64 Mac"
        if library.name == "_binding.so":
            named = (b"@rpath/libmlx.dylib", str(mlx / "lib").encode())
            yield from (f"the bridge does not name {name.decode()}" for name in named if name not in made)


def registers(program: Path) -> Iterator[str]:
    """The last lines of the tests of the Metal kernels' registers, if they fail or have no Zig."""
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    done = subprocess.run(
        [*pytest_command("ref"), "-q", "tests/peers/test_metal_registers.py"],
        cwd=repository(),
        env=environment() | {"PATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode or "skipped" in done.stdout:
        yield from (done.stdout + done.stderr).splitlines()[-20:]


def libraries(kernels: Path, mlx: Path) -> Iterator[building.Library]:
    """All that is compiled on a Mac: the bridge with its threads, and the kernels of each instruction set."""
    yield building.binding_library(mlx, is_for_mac=True)
    for isa in ISAS:
        if "arm64" in isa.machines:
            yield building.kernel_library(kernels, isa)
    limits = building.CPP / "limits.cpp"
    yield building.Library("limits.so", ((limits, ("-O3", "-mcpu=apple_m2")),), what="the limits of a CPU")


def zig(folder: Path) -> Path:
    """Zig's program, installed on first use."""
    home = folder / ZIG.replace("==", "-")
    if not home.exists():
        unfinished = home.with_suffix(".new")
        pip("install", "--target", str(unfinished), ZIG)
        unfinished.rename(home)
    return home / "ziglang" / "zig"


def wheel(folder: Path) -> Path:
    """MLX's package for the oldest macOS, as pdm.lock has it."""
    packages = tomllib.loads((repository() / "pdm.lock").read_text(encoding="utf-8"))["package"]
    [metal] = (each for each in packages if each["name"] == "mlx-metal")
    [file] = (each for each in metal["files"] if each["file"].endswith(f"{OLDEST}.whl"))
    home = folder / file["file"].removesuffix(".whl")
    if not home.exists():
        wanted = folder / "wanted.txt"
        wanted.write_text(f"mlx-metal=={metal['version']} --hash={file['hash']}\n", encoding="utf-8")
        where = ("--platform", OLDEST, "--only-binary=:all:", "--no-deps", "--dest", str(folder))
        pip("download", *where, "--require-hashes", "-r", str(wanted))
        with zipfile.ZipFile(folder / file["file"]) as archive:
            archive.extractall(home.with_suffix(".new"))
        home.with_suffix(".new").rename(home)
    return home / "mlx"


def pip(*arguments: str) -> None:
    """Call pip of the Python below .venv, which has none."""
    python = getattr(sys, "_base_executable", None) or sys.executable
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = re.findall(r"ERROR: (.*)", done.stderr) or done.stderr.strip().splitlines() or ["nothing"]
        raise RuntimeError(f"cannot build for a Mac: pip {arguments[0]} needs a registry: {said[-1]}")


if __name__ == "__main__":
    sys.exit(main())
