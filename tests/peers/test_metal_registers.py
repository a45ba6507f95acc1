"""The arrays of the Metal kernels stay in registers, as far as Clang for an arm64 Mac tells.

The bodies are compiled as the emulation compiles them, with Zig's Clang (`pip install ziglang`). An array that
is indexed by what the compiler cannot count out lies in memory: its `alloca` is still there after optimization.
Apple's compiler for GPUs is made of the same parts; it was not run.
"""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tests.helpers import metal_emulator

from tiny_llm_lab.runtime.native.device.decode_kernel import DIMS
from tiny_llm_lab.runtime.native.device.partitioned import partitioned_attention
from tiny_llm_ref.kernels.metal import flash_attention_metal, paged_attention_metal


def zig() -> str | None:
    """Zig's program: on the path, or of the package."""
    found = importlib.util.find_spec("ziglang")
    folders = list(found.submodule_search_locations or ()) if found else []
    return shutil.which("zig") or next((f"{folder}/zig" for folder in folders), None)


ZIG = zig()
pytestmark = pytest.mark.skipif(ZIG is None, reason="no Zig here: pip install ziglang")
FLAGS = ("-target", "aarch64-macos.14.0", "-std=c++20", "-O2", "-w", "-fno-sanitize=all", "-emit-llvm", "-S")
UNROLLED, BY_LANE = "for (uint i = 0; i < OWNED; ++i) {", "for (uint i = 0; lane + i * LANES < D; ++i) {"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the emulation would compile, written down instead of run."""
    written: list[str] = []

    def loaded(program: str) -> SimpleNamespace:
        written.append(program)
        return SimpleNamespace(run=lambda *launch: None)

    metal_emulator.install(monkeypatch, "emulated")
    monkeypatch.setattr(metal_emulator, "_loaded", loaded)
    return written


def arrays_in_memory(programs: Sequence[str], folder: Path) -> list[str]:
    found = []
    for number, program in enumerate(programs):
        source, made = folder / f"{number}.cpp", folder / f"{number}.ll"
        source.write_text(program, encoding="utf-8")
        command = [str(ZIG), "c++", *FLAGS, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        code = made.read_text(encoding="utf-8")
        assert "kernel" in code
        found += re.findall(r"alloca \[.*", code)
    return found


def paged(dim: int, size: int = 16) -> tuple[mx.array, ...]:
    """The arguments of a kernel for one row with two heads."""
    pool, row = mx.zeros((8, 1, size, dim), mx.bfloat16), mx.ones((8,), mx.int32)
    return (mx.zeros((1, 2, 1, dim), mx.bfloat16), pool, pool, mx.zeros((1, 8), mx.int32), row - 1, row)


@pytest.mark.parametrize("dim", DIMS)
def test_the_kernels_keep_their_arrays_in_registers(programs: list[str], tmp_path: Path, dim: int) -> None:
    rows = mx.zeros((1, 2, 3, dim), mx.bfloat16)
    for causal in (False, True):
        flash_attention_metal(rows, rows, rows, causal=causal)
    paged_attention_metal(*paged(dim))
    for longest in (1, 513):
        partitioned_attention(*paged(dim), 1.0, longest)
    assert len(programs) == 6
    assert arrays_in_memory(programs, tmp_path) == []


@pytest.mark.parametrize("dim", DIMS)
def test_a_loop_that_depends_on_the_lane_shows(programs: list[str], tmp_path: Path, dim: int) -> None:
    paged_attention_metal(*paged(dim))
    assert programs[0].count(UNROLLED) == 4
    assert len(arrays_in_memory([programs[0].replace(UNROLLED, BY_LANE)], tmp_path)) == 2
