"""`doctor` on Macs that are only claimed: what MLX has nothing for, its builds, and Xcode's tools."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.machines import MAC_8, pretend

from tiny_llm_lab.measure.doctor import machine
from tiny_llm_lab.runtime.native.compiling import build
from tiny_llm_lab.runtime.native.device.verdict import metal_wheel

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("machine_name", "macos", "fault", "cure"),
    [
        ("arm64", "14.8", "", ""),
        ("arm64", "26.2", "", ""),
        ("arm64", "13.7", "MLX needs macOS 14 or newer", "update macOS"),
        ("x86_64", "15.2", "a Python for Intel Macs", "a Python for Apple silicon"),
    ],
)
def test_a_mac_that_mlx_has_nothing_for(machine_name, macos, fault, cure, monkeypatch):
    pretend(monkeypatch, MAC_8)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    monkeypatch.setattr(platform, "mac_ver", lambda: (macos, ("", "", ""), machine_name))
    found = next(machine.system())
    assert found.is_right == (fault == "")
    assert f"macOS {macos}, {machine_name}" in found.says and fault in found.says and cure in found.cure


@pytest.mark.parametrize(
    ("wheel", "macos", "fault"),
    [
        ("macosx_26_0_arm64", "26.2", ""),
        ("macosx_26_0_arm64", "26.1", "needs macOS 26.2"),
        ("macosx_26_0_arm64", "26.0.1", "needs macOS 26.2"),
        ("macosx_15_0_arm64", "26.3", "is not the build for macOS 26"),
        ("macosx_14_0_arm64", "15.6", "is not the build for macOS 15"),
        ("macosx_15_0_arm64", "15.6", ""),
        ("macosx_14_0_arm64", "14.8", ""),
    ],
)
def test_the_build_of_mlx_fits_macos(wheel, macos, fault, monkeypatch):
    monkeypatch.setattr(platform, "mac_ver", lambda: (macos, ("", "", ""), "arm64"))
    assert [each.name for each in machine.versions()] == ["mlx", "mlx-lm"], "no Mac has no such wheel"
    monkeypatch.setattr(machine, "metal_wheel", lambda: wheel)
    *_, found = machine.versions()
    assert found.name == "mlx-metal" and found.says.startswith(wheel) and fault in found.says
    assert found.is_right == (fault == "") == (found.cure == "")


def test_the_build_is_read_from_the_wheel(monkeypatch):
    text = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-macosx_26_0_arm64\n"

    class Installed:
        def read_text(self, name):
            return text if name == "WHEEL" else None

    assert metal_wheel() == ""
    monkeypatch.setattr(machine.importlib.metadata, "distribution", {"mlx-metal": Installed()}.__getitem__)
    assert metal_wheel() == "macosx_26_0_arm64"


SHIM = (
    "#!/bin/sh\necho 'xcode-select: note: No developer tools were found, requesting install.' >&2\nexit 1\n"
)


def test_a_mac_without_xcode_s_tools(tmp_path, monkeypatch):
    for name in ("c++", "g++", "clang++"):
        (tmp_path / name).write_text(SHIM)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.sys, "platform", "darwin")
    [found] = machine.cpp_compiler()
    assert not found.is_right and found.cure.startswith("run xcode-select --install")
    pretend(monkeypatch, MAC_8)
    [found] = machine.cpp_compiler()
    assert found.is_right and "run xcode-select --install" in found.says, "a GPU computes without"


def test_a_variable_keeps_every_process_on_the_cpu():
    program = "import tests.helpers.claims_gpu; import tiny_llm_lab.runtime.native, mlx.core as mx; "
    program += "print(mx.default_device() == mx.cpu)"
    for device, said in (("cpu", "True\n"), ("", "False\n")):
        env = os.environ | {"TINY_LLM_DEVICE": device}
        command = [sys.executable, "-c", program]
        assert subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout == said
