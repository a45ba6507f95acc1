"""The verdicts on a GPU: what they hold for, what is kept of them, and where there are none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.some_gpu import REF

from tiny_llm_lab.runtime.native.device import device_tests, fused_checks
from tiny_llm_lab.runtime.native.device.device_tests import DELTA, PARTITIONED
from tiny_llm_lab.runtime.native.device.verdict import Verdict, kept
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime

GOOD = Verdict("k", True, "right", (0.5, 2.0))


def counting(found):
    made = list[int]()

    def judge():
        made.append(1)
        return [found]

    return judge, made


def test_a_verdict_holds_for_one_device_system_mlx_and_source(gpu, tmp_path, monkeypatch):
    judge, made = counting(GOOD)
    source = tmp_path / "k.metal"
    source.write_text("one")

    def is_new():
        found, is_new = kept("k", [source], judge)
        assert found == [GOOD]
        return is_new

    assert [is_new(), is_new()] == [True, False] and len(made) == 1
    source.write_text("two")
    assert [is_new(), is_new()] == [True, False]
    for name, value in [
        ("mlx.core.device_info", lambda: {"device_name": "Some M10"}),
        ("platform.mac_ver", lambda: ("27.1", ("", "", ""), "arm64")),
        ("importlib.metadata.version", lambda name: "0.99"),
        ("tiny_llm_lab.runtime.native.device.verdict.metal_wheel", lambda: "macosx_26_0_arm64"),
    ]:
        monkeypatch.setattr(name, value)
        assert [is_new(), is_new()] == [True, False], name


def test_a_verdict_on_a_kernel_holds_for_all_that_it_depends_on(gpu, sound, monkeypatch):
    names = dict[str, set[str]]()

    def recorded(subject, sources, *rest):
        names[subject] = {path.name for path in sources}
        return [GOOD], False

    monkeypatch.setattr(device_tests, "kept", recorded)
    Runtime(gpu.clock).verdicts(REF)
    checks = {"decode_checks.py", "decode_kernel.py", "mlx_pages.py"}
    own = {"metal.py", "paged_attention.metal"}
    assert names[f"paged_attention_metal of {REF}"] == checks | own
    assert names[PARTITIONED] == checks | {"partitioned.py", "partitions.metal", "merge.metal"}
    assert names[DELTA] == {"delta_decode.py", "delta_decode.metal", "delta_checks.py"}


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff\x00", b"[[1]]", b'{"a": 1}', b'[["k", true, "right", 8]]', b'[["k", true, "", ["x"]]]'],
)
def test_a_damaged_verdict_costs_a_new_test(damage, gpu, tmp_path):
    judge, made = counting(GOOD)
    kept("k", [], judge)
    (path,) = (tmp_path / "cache" / "verdicts").glob("*.json")
    path.write_bytes(damage)
    assert kept("k", [], judge) == ([GOOD], True)
    assert kept("k", [], judge) == ([GOOD], False) and len(made) == 2


@pytest.mark.parametrize("what", ["a file", "a folder in the way"])
def test_without_a_cache_there_is_a_test_in_every_process(what, gpu, sound, tmp_path, monkeypatch, capfd):
    judge, made = counting(GOOD)
    if what == "a file":
        (tmp_path / "cache").write_text("")
    else:
        kept("k", [], judge)
        (path,) = (tmp_path / "cache" / "verdicts").glob("*.json")
        path.unlink()
        path.mkdir()
        made.clear()
    assert kept("k", [], judge) == kept("k", [], judge) == ([GOOD], True)
    assert len(made) == 2
    if what == "a file":
        monkeypatch.setattr(f"{REF}.kernels.metal.paged_attention_metal", gpu.kernel())
        runtime = Runtime(gpu.clock)
        assert len(runtime.verdicts(REF)) == len(runtime.verdicts(REF)) == 4
        assert capfd.readouterr().err.count(f"Some M9: paged_attention_metal of {REF}") == 1, "in a process"


def test_an_interrupted_test_is_made_again(gpu):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("k", [], interrupted)
    assert kept("k", [], lambda: [GOOD]) == ([GOOD], True)


def test_a_test_that_ended_its_process_is_not_made_again(tmp_path):
    program = """if True:
        import os, sys
        from tiny_llm_lab.runtime.native.device.verdict import kept
        print(kept("k", [], lambda: os._exit(9))[0][0].says)"""
    env = os.environ | {"TINY_LLM_CACHE": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env) for _ in "12"
    ]
    assert [run.returncode for run in runs] == [9, 0], runs[1].stderr
    assert runs[1].stdout.startswith("crashed its test's process; to test it again, remove /")
    Path(runs[1].stdout.split()[-1]).unlink()


def test_operators_that_are_right_are_said_once(gpu, capfd):
    said = [
        line
        for subject in (fused_checks.ALL, PARTITIONED, DELTA)
        for line in (f"testing {subject} (once on this GPU) ...", f"Some M9: {subject}")
    ]
    for lines in (said, []):
        assert all(verdict.is_right for verdict in Runtime(gpu.clock).verdicts("tiny_llm_lab"))
        err = capfd.readouterr().err
        assert [line.partition(": right")[0] for line in err.splitlines()] == lines, (
            "and no kernel of its own"
        )


@pytest.mark.parametrize(("has_cuda", "subjects"), [(False, []), (True, [fused_checks.ALL])])
def test_without_metal(has_cuda, subjects, gpu, sound, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: has_cuda)
    runtime = Runtime(gpu.clock)
    assert isinstance(runtime.kernels(REF, {}), MlxOps)
    assert [each.subject for each in runtime.verdicts()] == subjects


def test_on_a_cpu_nothing_is_tested(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu, 0))
    monkeypatch.setenv("TINY_LLM_KERNELS", "mlx")
    runtime = Runtime(gpu.clock)
    assert isinstance(runtime.kernels(REF, {}), MlxOps) and runtime.verdicts() == []
    assert not (tmp_path / "cache").exists()


def test_a_verdict_is_kept_as_readable_text(gpu, tmp_path):
    kept("k", [], lambda: [GOOD])
    (path,) = (tmp_path / "cache" / "verdicts").glob("*.json")
    assert json.loads(path.read_text()) == [["k", True, "right", [0.5, 2.0]]]


def test_a_kernel_that_cannot_be_imported_has_failed(gpu, sound, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "some_package" / "kernels"
    folder.mkdir(parents=True)
    (folder / "metal.py").write_text("def (")
    (folder / "paged_attention.metal").write_text("")
    (tmp_path / "some_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    Runtime(gpu.clock).verdicts("some_package")
    assert "paged_attention_metal of some_package: fails (" in capfd.readouterr().err
