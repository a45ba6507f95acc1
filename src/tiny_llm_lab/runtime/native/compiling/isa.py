"""Instruction sets: which of them this machine can run, and how the compiler is told."""

import ctypes
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.types import UserError

VARIABLE = "TINY_LLM_ISA"


@dataclass(frozen=True)
class Isa:
    """One copy of the kernels: `width` floats a vector, `needs` of the CPU's own feature names.

    `has_given_tile`: its products use a tile that is given, so that a learner's own would not be called.
    """

    name: str
    width: int
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    machines: tuple[str, ...] = ("x86_64", "AMD64")
    has_given_tile: bool = False


_ARM = ("aarch64", "arm64")
_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_AVX512_BF16 = _AVX512 | {"avx512_vnni", "avx512_bf16"}
_AMX_FEATURES = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_NEON_BF16 = frozenset({"bf16", "i8mm", "asimdhp"})
_WIDE = ("-march=x86-64-v4", "-mprefer-vector-width=512")
_VNNI = (*_WIDE, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_AMX = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
# For its own +bf16 GCC 12 writes moves of float16, which the assembler takes with +fp16 alone.
_NEON = ("-march=armv8.2-a+fp16+bf16+i8mm",)
# Linux's names of features, by those of macOS.
_OF_MAC = {"bf16": "FEAT_BF16", "i8mm": "FEAT_I8MM", "asimdhp": "FEAT_FP16", "asimddp": "FEAT_DotProd"}
# The best first. A compiler that knows x86-64-v4 (GCC 11, Clang 12) knows the rest as well.
ISAS = (
    Isa("avx512amx", 16, (*_BF16, *_AMX), _AVX512_BF16 | _AMX_FEATURES, has_given_tile=True),
    Isa("avx512bf16", 16, _BF16, _AVX512_BF16),
    Isa("avx512vnni", 16, _VNNI, _AVX512 | {"avx512_vnni"}),
    Isa("avx512", 16, _WIDE, _AVX512),
    Isa("avxvnni", 8, ("-march=x86-64-v3", "-mavxvnni"), _AVX2 | {"avx_vnni"}),
    Isa("avx2", 8, ("-march=x86-64-v3",), _AVX2),
    Isa("neonbf16", 4, _NEON, _NEON_BF16, _ARM),
    Isa("neondot", 4, ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"}), _ARM),
    Isa("neon", 4, (), machines=_ARM),
    Isa("plain", 4, ("-DTINY_PLAIN",), machines=("x86_64", "AMD64", *_ARM)),
)


def available() -> list[Isa]:
    """What this machine can run, the best first; "plain" always can."""
    machine, known = platform.machine(), features()
    runs = [isa for isa in ISAS if machine in isa.machines and isa.needs <= known]
    return runs or [ISAS[-1]]


def selected_isa() -> Isa:
    """The best, or the one that TINY_LLM_ISA names."""
    runs = {isa.name: isa for isa in available()}
    name = os.environ.get(VARIABLE) or next(iter(runs))
    if name not in runs:
        raise UserError(f"{VARIABLE}={name} cannot run on this machine: choose one of {', '.join(runs)}")
    return runs[name]


def features() -> frozenset[str]:
    """The CPU's features under Linux's names; empty if the system does not list them."""
    if sys.platform == "darwin":
        return frozenset(name for name, feature in _OF_MAC.items() if _says_yes(f"hw.optional.arm.{feature}"))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        if line.startswith(("flags", "Features")):  # x86, ARM
            known = frozenset(line.partition(":")[2].split())
            return known if known >= _AMX_FEATURES and _gets_matrix_registers() else known - _AMX_FEATURES
    return frozenset()


def _gets_matrix_registers() -> bool:
    """Whether Linux keeps the matrix registers of AMX for this process, which has to ask for them."""
    request, tile_data, arch_prctl = 0x1023, 18, 158
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def _says_yes(name: str) -> bool:
    """Whether macOS knows this property of the CPU and the CPU has it."""
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True)
    except OSError:
        return False
    return done.stdout.strip() == "1"
