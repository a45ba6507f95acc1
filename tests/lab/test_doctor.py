"""`doctor`: every state of a machine is lines with a mark, and what is wrong has a cure."""

import json
import os
import platform
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.machines import CUDA_80, MAC_8, pretend
from tests.helpers.processes import finished

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.measure.corpus.question import QUESTION
from tiny_llm_lab.measure.doctor import command, machine
from tiny_llm_lab.measure.doctor.machine import Finding, findings_of
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, CrashError
from tiny_llm_lab.runtime.native import self_test
from tiny_llm_lab.runtime.native.compiling import build
from tiny_llm_lab.runtime.native.compiling.build import keep
from tiny_llm_lab.runtime.native.compiling.isa import selected_isa
from tiny_llm_lab.runtime.native.device.verdict import Verdict, metal_wheel
from tiny_llm_lab.types import UserError


def doctor(capfd):
    """Exit code, and what `doctor --json` found, by name."""
    code = main(["doctor", "--json"])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["is_right"] == (code == 0)
    return code, {each["name"]: Finding(**each) for each in document["findings"]}


def test_this_machine(monkeypatch, capfd):
    monkeypatch.setenv(native.VARIABLE, "auto")
    code, found = doctor(capfd)
    assert code == 0, [each for each in found.values() if not each.is_right]
    assert f"C++ kernels for {selected_isa().name} (TINY_LLM_KERNELS=auto, on a CPU)" == found["kernels"].says
    assert found["equality"].says.startswith("bit for bit")
    assert {"system", "device", "memory", "mlx", "mlx-lm", "compiler", "cache", "answer"} <= set(found)


def test_mlx_s_operators_promise_less(monkeypatch, capfd):
    monkeypatch.setenv(native.VARIABLE, "mlx")
    code, found = doctor(capfd)
    assert code == 0
    assert found["kernels"].says == "MLX's fused operators (TINY_LLM_KERNELS=mlx)"
    assert found["equality"].says.startswith("within rounding")
    assert "only within rounding" in found["chunk grid"].says


NO_SETTINGS = [
    (native.VARIABLE, "banana", {"C++ self-test", "kernels"}, "choose auto, cpp, mlx or off"),
    ("TINY_LLM_ISA", "mmx", {"instructions", "C++ self-test", "kernels"}, "choose one of"),
    ("CXX", "no-such-compiler", {"compiler", "C++ self-test", "kernels"}, "install g++ or clang"),
    ("TINY_LLM_THREADS", "many", {"C++ self-test", "kernels"}, "write 1 to"),
]


@pytest.mark.parametrize(("variable", "value", "wrong", "cure"), NO_SETTINGS)
def test_settings_that_do_not_exist(variable, value, wrong, cure, monkeypatch, capfd):
    monkeypatch.setenv(native.VARIABLE, "auto")
    monkeypatch.setenv(variable, value)
    code, found = doctor(capfd)
    assert code == EXIT_FAILED
    assert {name for name, each in found.items() if not each.is_right} == wrong
    assert any(cure in found[name].cure for name in wrong)
    assert all(found[name].cure for name in wrong)


def damage(cache, library):
    """Garbage where the cache keeps `library`, of the size that it is known to have."""
    path = cache / "native" / build._fingerprint(library, build.compiler()) / library.name
    path.parent.mkdir(parents=True)
    path.with_suffix(".new").write_text("garbage")
    keep(path.with_suffix(".new"), path)
    path.with_suffix(".tested").write_text("garbage")
    return path


def test_a_damaged_cache(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv(native.VARIABLE, "auto")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    kernels = Path(machine.__file__).parents[3] / "tiny_llm_ref" / "kernels"
    damage(tmp_path, build.kernel_library(kernels, selected_isa()))
    path = damage(tmp_path, build.binding_library())
    code, found = doctor(capfd)
    assert code == EXIT_FAILED
    says = found["C++ self-test"].says
    assert says.startswith(f"cannot load {path} (") and "file too short" in says, "the loader's own words"
    assert found["C++ self-test"].cure == f"delete {path.parent}, and we compile it again"
    assert not found["kernels"].is_right
    assert found["answer"].is_right, "plain MLX goes on"


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "file" / "cache"))
    [cache, _] = machine.caches()
    assert not cache.is_right and "TINY_LLM_CACHE" in cache.cure


def test_the_size_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "a.so").write_bytes(b"x" * 2048)
    assert next(machine.caches()).says == f"{tmp_path}: native 2.0 KiB"


def test_a_kernel_that_is_wrong(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "cpp")
    monkeypatch.setattr(machine, "first_wrong", lambda _: "linear")
    [found] = machine._cpp_self_test()
    assert not found.is_right and found.says == "linear is wrong"
    monkeypatch.setattr(machine, "first_wrong", self_test.first_wrong)
    [found] = machine._cpp_self_test()
    assert found.is_right


def test_what_the_gpu_s_self_tests_found(monkeypatch):
    assert list(machine._gpu_self_tests()) == [], "a CPU has none"
    pretend(monkeypatch, MAC_8)
    monkeypatch.setenv(native.VARIABLE, "auto")
    verdicts = [Verdict("rope", True, "right"), Verdict("causal attention", False, "wrong: masks instead")]
    monkeypatch.setattr(native, "verdicts", lambda: verdicts)
    rope, attention = machine._gpu_self_tests()
    assert rope.is_right and rope.says == "rope: right"
    assert not attention.is_right and attention.says == "causal attention: wrong: masks instead"


def test_an_answer_that_is_not_the_known_one(monkeypatch):
    monkeypatch.setattr(machine, "QUESTION", QUESTION.replace("attic", "barn"))
    _, answer, *_ = machine._model()
    assert not answer.is_right and "in the barn" in answer.says


def test_kernels_that_end_the_process(monkeypatch):
    def crash(*_):
        raise CrashError("the process ended without a result: it may have run out of memory")

    monkeypatch.setattr(command, "run_fresh", crash)
    [found] = command._computed()
    assert not found.is_right and "native, then try again" in found.cure


def test_other_machines(monkeypatch):
    pretend(monkeypatch, MAC_8, active=2**30)
    [found] = machine.memory()
    assert found.says == "8.0 GiB, 2.0 GiB free; a GPU may use 3.0 GiB, 4.0 GiB of it in one array"
    pretend(monkeypatch, MAC_8, active=5 * 2**30)
    assert not next(machine.memory()).is_right
    pretend(monkeypatch, CUDA_80)
    _, device = machine.system()
    assert device.is_right and device.says == "NVIDIA H100 80GB HBM3, a GPU, by CUDA"
    monkeypatch.setenv("CXX", "no-such-compiler")
    [compiler] = machine.cpp_compiler()
    assert compiler.is_right, "a GPU computes without"


def test_a_mac_without_a_gpu_is_told(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    system, device = machine.system()
    assert system.says.startswith("macOS")
    assert not device.is_right and "Apple silicon" in device.cure


def test_another_version_of_mlx(monkeypatch):
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda _: ["mlx==0.1", "mlx-lm>=0.1"])
    mlx, mlx_lm = machine.versions()
    assert not mlx.is_right and "tested with 0.1" in mlx.says and mlx.cure == "run ./pdmw install"
    assert mlx_lm.is_right


def test_whatever_an_examination_raises_is_a_line():
    def fails(error):
        def examine():
            yield Finding("first", True, "well")
            raise error

        return findings_of("second", examine)

    first, second = fails(UserError(f"{Path.home()}/x: is bad: mend it"))
    assert first.is_right
    assert second == Finding("second", False, "~/x: is bad", "mend it")
    assert fails(KeyError("x"))[1].says == "KeyError: 'x'"
    compiler = build.CompileError("the C++ compiler failed\nx.cpp:1: error: no\nmore")
    assert fails(compiler)[1].says == "the C++ compiler failed (x.cpp:1: error: no)"


def test_lines_have_80_columns_and_the_cure_below():
    finding = Finding("kernels", False, "word " * 30, "do " * 40)
    lines = command.lines_of(finding, 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("✗ kernels") and sum("→" in line for line in lines) == 1
    [line] = command.lines_of(Finding("kernels", True, "fine", "not shown"), 80)
    assert line.startswith("✓ kernels") and "not shown" not in line


# `doctor` on Macs that are only claimed: what MLX has nothing for, its builds, and Xcode's tools


ROOT = Path(__file__).parents[2]


OTHER_MACS = [
    ("arm64", "14.8", "", ""),
    ("arm64", "26.2", "", ""),
    ("arm64", "16.2", "", ""),  # what 26 tells a Python that was built before it
    ("arm64", "13.7", "MLX needs macOS 14 or newer", "update macOS"),
    ("x86_64", "15.2", "a Python for Intel Macs", "a Python for Apple silicon"),
]


@pytest.mark.parametrize(("machine_name", "macos", "fault", "cure"), OTHER_MACS)
def test_a_mac_that_mlx_has_nothing_for(machine_name, macos, fault, cure, monkeypatch):
    pretend(monkeypatch, MAC_8)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    monkeypatch.setattr(platform, "mac_ver", lambda: (macos, ("", "", ""), machine_name))
    found = next(machine.system())
    assert found.is_right == (fault == "")
    assert (
        f"macOS {macos.replace('16', '26')}, {machine_name}" in found.says
        and fault in found.says
        and cure in found.cure
    )


BUILDS = [
    ("macosx_26_0_arm64", "26.2", ""),
    ("macosx_26_0_arm64", "26.1", "needs macOS 26.2"),
    ("macosx_26_0_arm64", "26.0.1", "needs macOS 26.2"),
    ("macosx_15_0_arm64", "26.3", "is not the build for macOS 26"),
    ("macosx_26_0_arm64", "16.2", ""),
    ("macosx_15_0_arm64", "16.3", "is not the build for macOS 26"),
    ("macosx_14_0_arm64", "15.6", "is not the build for macOS 15"),
    ("macosx_15_0_arm64", "15.6", ""),
    ("macosx_14_0_arm64", "14.8", ""),
]


@pytest.mark.parametrize(("wheel", "macos", "fault"), BUILDS)
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
        assert finished(command, cwd=ROOT, env=env).stdout == said
