"""The verdicts on a GPU: what they hold for, what is kept of them, and where there are none."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import mlx.core as mx
import pytest
from tests.helpers.some_gpu import REF

from tiny_llm_lab.runtime.native.device import delta_checks, fused_checks
from tiny_llm_lab.runtime.native.device.chunk_ways import WAYS
from tiny_llm_lab.runtime.native.device.device_tests import CHUNKS, DELTA, PARTITIONED
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


DAMAGED = [b"", b"\xff\x00", b"[[1]]", b'{"a": 1}', b'[["k", true, "right", 8]]', b'[["k", true, "", ["x"]]]']


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_verdict_costs_a_new_test(damage, gpu, tmp_path):
    judge, made = counting(GOOD)
    kept("k", [], judge)
    (path,) = (tmp_path / "cache" / "verdicts").glob("*.json")
    path.write_bytes(damage)
    assert kept("k", [], judge) == ([GOOD], True)
    assert kept("k", [], judge) == ([GOOD], False) and len(made) == 2


@pytest.mark.parametrize("what", ["a file", "a folder in the way"])
def test_without_a_cache_there_is_a_test_in_every_process(what, gpu, tmp_path):
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


def test_an_interrupted_test_is_made_again(gpu):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept("k", [], interrupted)
    assert kept("k", [], lambda: [GOOD]) == ([GOOD], True)


def test_while_a_process_tests_others_wait_for_its_verdict(gpu):
    """Until then it is written that the test has crashed."""
    begun, go = Event(), Event()

    def test():
        begun.set()
        assert go.wait(9)
        return [GOOD]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept, "k", [], test)
        assert begun.wait(9)
        second = pool.submit(kept, "k", [], test)
        assert not wait([second], 0.2).done
        go.set()
        assert (first.result(), second.result()) == (([GOOD], True), ([GOOD], False))


def test_operators_that_are_right_are_said_once(gpu, monkeypatch, capfd):
    said = [
        line
        for subject in (fused_checks.ALL, PARTITIONED, f"{DELTA} of 16 and 32 heads of 128 and 128")
        for line in (f"testing {subject} (once on this GPU) ...", f"Some M9: {subject}")
    ]
    net = f"{said.pop()} by"
    said += [f"{net} {way}" for way in ("arrays", "mx.fast.gated_delta_update", "delta_decode.metal")]
    said += [f"testing {CHUNKS} (once on this GPU) ...", *(f"Some M9: {CHUNKS} by {way}" for way in WAYS)]
    monkeypatch.setattr(delta_checks, "is_fused", lambda sizes: True)
    for lines in (said, []):
        assert all(verdict.is_right for verdict in Runtime(gpu.clock).verdicts("tiny_llm_lab"))
        err = capfd.readouterr().err
        assert [line.partition(": right")[0] for line in err.splitlines()] == lines, "no kernel of its own"


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


def test_a_kernel_that_cannot_be_imported_has_failed(gpu, sound, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "some_package" / "kernels"
    folder.mkdir(parents=True)
    (folder / "metal.py").write_text("def (")
    (folder / "paged_attention.metal").write_text("")
    (tmp_path / "some_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    Runtime(gpu.clock).verdicts("some_package")
    assert "paged_attention_metal of some_package: fails (" in capfd.readouterr().err


ROOT = Path(__file__).parents[2]
# "causal" ends the process, as an error on a GPU can.
CRASHES = """
import os, sys
from pathlib import Path
import mlx.core as mx
import pytest
from tests.helpers.some_gpu import REF, SomeGpu
from tiny_llm_lab.runtime.native.runtime import Runtime

patch = pytest.MonkeyPatch()
gpu = SomeGpu(patch, Path(sys.argv[1]))
real = mx.fast.scaled_dot_product_attention

def crash(*arrays, **options):
    if isinstance(options["mask"], str):
        os._exit(9)
    return real(*arrays, **options)

patch.setattr(mx.fast, "scaled_dot_product_attention", crash)
ops = Runtime(gpu.clock).kernels(REF, {})
print(type(ops).__name__, ops._masks)
"""


def test_a_crash_turns_off_the_operator_that_crashed(tmp_path):
    command = [sys.executable, "-c", CRASHES, str(tmp_path)]
    first, second = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True) for _ in "12")
    assert first.returncode == 9, first.stderr
    assert second.stdout == "MlxOps True\n", second.stderr
    [testing, wrong] = second.stderr.splitlines()
    assert testing.startswith("testing "), "what had not been tried is tried"
    assert f"{fused_checks.CAUSAL}: crashed its test's process: so models use arrays as masks;" in wrong
    Path(wrong.split()[-1]).unlink()  # the line names what to remove
