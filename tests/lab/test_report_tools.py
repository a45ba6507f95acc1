"""`report` where tools are missing, and which build of MLX it names."""

import sys
from pathlib import Path

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.report import plan
from tiny_llm_lab.measure.report.command import page_of
from tiny_llm_lab.measure.report.part import Part
from tiny_llm_lab.measure.report.plan import Plan


def test_what_lacks_a_tool_is_left_out_and_no_fault(tmp_path, monkeypatch, capsys):
    parts = [
        Part("bench", (sys.executable, "-c", "print('{}')"), 60.0),
        Part("tests", (), 60.0, lacks="no C++ compiler"),
    ]
    monkeypatch.setattr(Plan, "parts", lambda self: iter(parts))
    assert main(["report", "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| tests |  left out | 0 | no C++ compiler |" in page.replace("✗", "")


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    lacking = {each.title: each for each in Plan("default", Path("out")).parts() if "tests" in each.title}
    of_kernels, of_model = (
        lacking[name] for name in ("tests of the C++ kernels", "tests of the model on MLX's operators")
    )
    assert of_kernels.lacks.startswith("cannot find a C++ compiler: install g++ or clang")
    assert of_model.lacks == "" and "not emulated" in of_model.command
    monkeypatch.setattr(plan.importlib.util, "find_spec", lambda _: None)
    assert all(each.lacks for each in Plan("default", Path("out")).parts() if "tests" in each.title)


def test_the_page_names_the_build_for_a_mac():
    assert "MLX 0.1 (macosx_26_0_arm64)," in page_of(
        host_facts() | {"mlx": "0.1", "mlx_metal_wheel": "macosx_26_0_arm64"}, "m", []
    )
