"""The verdicts on a GPU: what they hold for, what is kept of them, and where there are none."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Event

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.processes import finished
from tests.helpers.some_gpu import REF, attended
from tests.helpers.tolerance import F32, assert_close
from tests.lab.test_memory_plan import GIB, Queue, Text, planned

from tiny_llm_lab.measure.fit.models import claimed_mac
from tiny_llm_lab.runtime.native.device import chunk_ways, delta_checks, fused_checks
from tiny_llm_lab.runtime.native.device.chunk_ways import CELLS, WAYS, ChunkWays, by_mlx, in_pieces
from tiny_llm_lab.runtime.native.device.device_tests import CHUNKS, DELTA, PARTITIONED
from tiny_llm_lab.runtime.native.device.ladder import timed_for
from tiny_llm_lab.runtime.native.device.verdict import Verdict, kept
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime
from tiny_llm_lab.serving.memory_plan import ChunkBound, plan_memory

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
    first, second = (finished(command, cwd=ROOT) for _ in "12")
    assert first.returncode == 9, first.stderr
    assert second.stdout == "MlxOps True\n", second.stderr
    [testing, wrong] = second.stderr.splitlines()
    assert testing.startswith("testing "), "what had not been tried is tried"
    assert f"{fused_checks.CAUSAL}: crashed its test's process: so models use arrays as masks;" in wrong
    Path(wrong.split()[-1]).unlink()  # the line names what to remove


# Chunks with heads of 256 on a GPU that is only claimed: which way each takes, and what the plan counts


JUDGE, SHAPE, SHORTER = chunk_ways.judge_chunks, chunk_ways.timed_shape, 64


@pytest.fixture
def judging(gpu, sound, monkeypatch):
    """The real self-test, with 64 times fewer rows and tokens; a call of MLX's attention takes a second."""
    monkeypatch.setattr(chunk_ways, "judge_chunks", JUDGE)
    shape = lambda *cell: (*(each // SHORTER for each in cell), 1, SHAPE(*cell)[-1])  # noqa: E731
    monkeypatch.setattr(chunk_ways, "timed_shape", shape)
    monkeypatch.setattr(chunk_ways, "_SHAPES", ((1, 10, 11), (1, 33, 40)))
    monkeypatch.setattr(fused_checks, "LONG", [((4, 1, 256), (1, 64, 70))])
    return gpu


LARGE, LONG = [cell for cell in CELLS if cell[0] > 999], [cell for cell in CELLS if cell[1] > 4000]
# Seconds of a way where MLX's choice takes one, the rows with which it is wrong, and the cells that take it.
PLANTED = {
    "faster": (lambda rows, before: 0.5, 0, list(CELLS)),
    "slower": (lambda rows, before: 2.0, 0, []),
    "as fast": (lambda rows, before: 1.0, 0, []),
    "fast and wrong": (lambda rows, before: 0.1, 33, []),
    "faster from 1,024 rows on": (lambda rows, before: 0.5 if rows > 999 else 2.0, 0, LARGE),
    "faster after long texts": (lambda rows, before: 1500 / (before + 1), 0, LONG),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_chunk_takes_the_fastest_way_that_is_right(name, judging, llm, monkeypatch):
    """In an engine's pages and in the cache of one request."""
    seconds, wrong, cells = PLANTED[name]

    def planted(q, k, v, scale, causal):
        judging.clock.now += seconds(q.shape[2] * SHORTER, (k.shape[2] - q.shape[2]) * SHORTER) - 1
        return by_mlx(q, k, v, scale, causal) * (1.1 if q.shape[2] == wrong else 1)

    monkeypatch.setattr(chunk_ways, "WAYS", {"MLX's choice": by_mlx, "planted": planted, "raising": None})
    ops = Runtime(judging.clock).kernels(REF, {})
    for rows, before in CELLS:
        q, k = mx.zeros((1, 8, rows, 256)), mx.zeros((1, 2, before + rows, 256))
        assert ops.chunks.chosen(q, k) is (planted if (rows, before) in cells else by_mlx), (rows, before)
    step, now = Requests(llm, [40, 12], [20, 12], 8, H=4, G=1, D=256), judging.clock.now
    assert_close(attended(ops, step), step.want(), F32)
    x = mx.ones((1, 4, 30, 256))
    assert_close(ops.attention(x, x[:, :1], x[:, :1], [30], 1 / 16), mx.ones((1, 30, 1024)), F32)
    of_each = 1 if (64, 512) not in cells else 1 + seconds(20 * SHORTER, 20 * SHORTER) - 1
    assert judging.clock.now - now == pytest.approx(3 * of_each), "three chunks"


def test_the_verdicts_on_this_build(judging, monkeypatch, capfd):
    """A CPU has no fused kernel, so it isn't used; what is written out is measured."""
    whole, fused, pieces = Runtime(judging.clock).verdicts(REF)[-3:]
    assert (whole.is_right, fused.is_right, pieces.is_right) == (True, False, True)
    assert "fails ([scaled_dot_product_attention] force_fused=True but no fused kernel" in fused.says
    assert "right; its time relative to MLX's choice, rows x tokens before: 1.00 with 64 x 512" in pieces.says
    assert capfd.readouterr().err.count("testing attention of chunks") == 1
    monkeypatch.setattr(chunk_ways, "timed_shape", lambda *cell: (256, 1792, 1, 1))
    ratio, need = chunk_ways._measured(by_mlx, judging.clock, CELLS[0])
    assert ratio == 1 and 2 * 256 <= need < 8 * 256, "one or a few numbers of 16 bits for each row"


def test_real_ways_are_right_and_one_that_sees_a_later_token_is_not(gpu):
    assert [*chunk_ways.wrong_shapes(by_mlx), *chunk_ways.wrong_shapes(WAYS["pieces of 128 rows"])] == []

    def wrong(q, k, v, scale, causal):
        return in_pieces(q, k, v, scale, lambda new, stored: "causal" if new < 100 else None, size=128)

    assert "of 130 new tokens, 130 stored, H, G, D = 8, 1, 256" in next(chunk_ways.wrong_shapes(wrong))


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_timed_stays_below_a_gigabyte(cell):
    rows, before, groups, layers = SHAPE(*cell)
    assert (rows, before) == cell and 0 < layers * 4 * groups * rows * (before + rows) * 4 < 1_000_000_000
    assert timed_for(chunk_ways.ROWS, rows) == rows


def ways(*tried):
    """Each: its time relative to MLX's choice, bytes of a head and stored token with 512 rows, and itself."""
    needs = [tuple(need * rows / 512 for rows, _ in CELLS) for _, need, _ in tried]
    found = [
        (Verdict("", True, "", (each[0],) * 12, need), each[2])
        for each, need in zip(tried, needs, strict=True)
    ]
    return ChunkWays(lambda: found)


def test_what_does_not_fit_takes_the_way_that_needs_least():
    q, k = mx.zeros((1, 16, 512, 256)), mx.zeros((1, 4, 33_000, 256))
    chunks = ways((1.0, 2048, "whole"), (1.2, 512, "pieces"), (1.5, 0, "fused"))
    wanted = {math.inf: "whole", 1.1e9: "whole", 1.0e9: "pieces", 2e8: "fused", 0: "fused"}
    for chunks.most, want in wanted.items():
        assert chunks.chosen(q, k) == want, chunks.most
    assert chunks.needs(16, 256, 512, 1000) == [2048 * 16_000, 512 * 16_000, 0]
    assert chunks.needs(16, 256, 1000, 2000)[0] == 2048 * 32_000 * 1000 / 512, "more rows than were timed"
    assert chunks.needs(16, 128, 512, 1000) == [0], "MLX's kernel of 128 dimensions keeps none"
    assert chunks.needs(16, 96, 512, 1000) == [4 * 512 * 16_000], "not tested, so written out"


def test_where_a_fused_way_is_right_no_step_is_cut():
    def served(chunks):
        asked = replace(planned("qwen3.5-9b", length=131_072), chunks=chunks)
        plan = plan_memory(asked, claimed_mac(16 * GIB))
        queue = Queue([Text(131_072, 120_000)], [])
        return plan, ChunkBound(plan, asked, None).token_budget(0.0, queue, lambda _: 0.0)

    known, rows = served(ways((1.0, 2048, "whole")))
    assert (known, rows) == served(ChunkWays()) and rows < 200, "as before anything was tested"
    both, rows = served(ways((1.0, 2048, "whole"), (1.5, 0, "fused")))
    assert rows == 512 and both.scores == known.scores, "the faster way, as far as it fits"
    fused, rows = served(ways((1.0, 2048, "whole"), (0.8, 0, "fused")))
    assert rows == 512 and fused.scores == 0 and fused.room > known.room
