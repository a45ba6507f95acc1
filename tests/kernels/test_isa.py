"""Which instruction sets a machine can run."""

import pytest

from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.types import UserError


def test_an_instruction_set_that_cannot_run(monkeypatch):
    names = [copy.name for copy in isa.available()]
    monkeypatch.setenv(isa.VARIABLE, "mmx")
    with pytest.raises(
        UserError, match=f"TINY_LLM_ISA=mmx cannot run on this machine: choose one of {', '.join(names)}"
    ):
        isa.selected_isa()
    for name in names:
        monkeypatch.setenv(isa.VARIABLE, name)
        assert isa.selected_isa().name == name
    monkeypatch.delenv(isa.VARIABLE)
    assert isa.selected_isa().name == names[0]


AVX512 = "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512cd"
VNNI, BF16 = f"{AVX512} avx512_vnni", f"{AVX512} avx512_vnni avx512_bf16"
AMX = f"{BF16} amx_tile amx_int8 amx_bf16"
MACHINES = [
    ("x86_64", "", "plain"),
    ("x86_64", "avx2 fma f16c", "plain"),
    ("x86_64", "avx2 fma f16c bmi2", "avx2 plain"),
    ("x86_64", AVX512, "avx512 avx2 plain"),
    ("x86_64", VNNI, "avx512vnni avx512 avx2 plain"),
    ("x86_64", BF16, "avx512bf16 avx512vnni avx512 avx2 plain"),
    ("x86_64", AMX, "avx512amx avx512bf16 avx512vnni avx512 avx2 plain"),
    ("x86_64", "avx2 fma f16c bmi2 avx_vnni", "avxvnni avx2 plain"),
    ("aarch64", "", "neon plain"),
    ("aarch64", "asimd bf16", "neon plain"),
    ("aarch64", "asimd asimddp", "neondot neon plain"),
    ("aarch64", "asimd asimddp asimdhp bf16 i8mm", "neonbf16 neondot neon plain"),
    ("arm64", "", "neon plain"),
    ("arm64", "asimddp i8mm", "neondot neon plain"),
    ("arm64", "bf16 i8mm", "neon plain"),
    ("arm64", "asimdhp bf16 i8mm", "neonbf16 neon plain"),
    ("riscv64", "", "plain"),
]


@pytest.mark.parametrize(("machine", "features", "names"), MACHINES)
def test_what_a_machine_can_run(machine, features, names, monkeypatch):
    monkeypatch.setattr(isa.platform, "machine", lambda: machine)
    monkeypatch.setattr(isa, "features", lambda: frozenset(features.split()))
    assert [copy.name for copy in isa.available()] == names.split()


SYSCTLS = [("echo 1", {"bf16", "i8mm", "asimdhp"}), ("echo 0", set()), ("exit 1", set()), ("", set())]


@pytest.mark.parametrize(("says", "found"), SYSCTLS)
def test_what_macos_says_of_its_cpu(says, found, tmp_path, monkeypatch):
    """`sysctl` answers 1 or 0, fails for a name that an older system does not know, or is not there."""
    monkeypatch.setattr(isa.sys, "platform", "darwin")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if says else str(tmp_path))
    if says:
        script = tmp_path / "sysctl"
        names = '"-n hw.optional.arm.FEAT_"[BIF]*'
        script.write_text(f'#!/bin/sh\ncase "$*" in {names}) {says};; *) exit 1; esac\n')
        script.chmod(0o755)
    assert isa.features() == found


KEPT_REGISTERS = [
    ("avx2 amx_tile amx_int8 amx_bf16", True, "avx2 amx_tile amx_int8 amx_bf16"),
    ("avx2 amx_tile amx_int8 amx_bf16", False, "avx2"),
    ("avx2 amx_tile amx_int8", True, "avx2"),
]


@pytest.mark.parametrize(("flags", "is_given", "found"), KEPT_REGISTERS)
def test_matrix_registers_count_if_the_system_keeps_them(flags, is_given, found, monkeypatch):
    monkeypatch.setattr(isa.sys, "platform", "linux")
    monkeypatch.setattr(isa.Path, "read_text", lambda *_, **__: f"model : 1\nflags\t: {flags}\n")
    monkeypatch.setattr(isa, "_gets_matrix_registers", lambda: is_given)
    assert isa.features() == set(found.split())
