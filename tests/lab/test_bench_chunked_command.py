"""`bench-chunked-prefill` as a command: its processes, its files, and how it ends."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.recorded import recorded

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import sample, sweep
from tiny_llm_lab.measure.bench.chunked import workload
from tiny_llm_lab.measure.bench.spec import Schedule, Spec

Capture = pytest.CaptureFixture[str]
Bench = Callable[..., int]


class Children:
    """Stands in for the processes; `then` is raised by the last of them."""

    def __init__(self, last=1000, then=None):
        self.specs = []
        self.last, self.then = last, then

    def __call__(self, measure, spec, threads):
        self.specs.append(spec)
        if len(self.specs) == self.last and self.then is not None:
            raise self.then
        stall_s = 8.0 if spec.schedule.max_chunk >= 1024 else 1.0
        return recorded(stall_s)


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Runs the command on scripted processes; its results go into tmp_path unless `out` says else."""

    def run(children, *argv, out=tmp_path):
        for module in (sweep, workload):
            monkeypatch.setattr(module, "run_fresh", children)
        steps = ("--prefill-steps", "32", "999999")
        return cli.main(["bench-chunked-prefill", *steps, "--out", str(out), *argv])

    return run


def test_table_json_and_picture(bench, tmp_path, capsys):
    children = Children()
    assert bench(children, out=tmp_path / "new" / "folder") == 0
    out = capsys.readouterr().out
    assert "ITL max, prefill_step 32 / unchunked: 0.125" in out
    calibration, *measured = children.specs
    assert not any(request.arrival_s for request in calibration.requests) and calibration.batch_size == 1
    assert len({spec.requests for spec in measured}) == 1, "every step must see the same arrivals"
    turns = [(spec.seed, spec.schedule.prefill_step) for spec in measured]
    assert turns[:4] == [(0, 32), (0, 999999), (1, 999999), (1, 32)] and len(turns) == 8
    text = (tmp_path / "new" / "folder" / "chunked_prefill.json").read_text()
    result = json.loads(text)
    assert len(result["samples"]) == 8 and len(result["sections"][0]["rows"]) == 2
    assert (result["schema"], result["benchmark"]) == (1, "chunked-prefill")
    assert {"cpu", "cores", "mlx", "commit", "device"} <= result["host"].keys()
    assert str(tmp_path) not in text and str(Path.home()) + "/" not in text
    assert (tmp_path / "new" / "folder" / "chunked_prefill.png").read_bytes().startswith(b"\x89PNG")


def test_an_earlier_result_is_kept(bench, tmp_path, capsys):
    assert bench(Children(), "--repeats", "1") == 0
    first = (tmp_path / "chunked_prefill.json").read_bytes()
    capsys.readouterr()
    assert bench(Children(), "--repeats", "1") == 0
    assert (tmp_path / "chunked_prefill.json").read_bytes() == first
    assert "chunked_prefill-2.json and " in capsys.readouterr().err
    assert (tmp_path / "chunked_prefill-2.png").exists()


def test_chunk_policies_are_rows_beside_the_steps(bench, capsys):
    children = Children()
    argv = ("--chunk-policies", "table", "adaptive", "--chunk-target-ms", "30", "--burst", "3")
    assert bench(children, *argv, "--repeats", "1") == 0
    _, *measured = children.specs
    found = [(each.schedule.policy, each.schedule.prefill_step, each.schedule.target_ms) for each in measured]
    assert found == [("fixed", 32, 0), ("fixed", 999999, 0), ("table", 128, 0), ("adaptive", 128, 30)]
    longs = [each.arrival_s for each in measured[0].requests if each.kind == "long"]
    assert len(longs) == 3 and len(set(longs)) == 1, "a burst of three"
    out = capsys.readouterr().out
    assert "adaptive, 30 ms, long" in out and "ITL max, table / unchunked" in out


@pytest.mark.parametrize("policy", ["table", "adaptive"])
def test_a_chunk_policy_reaches_the_loop(policy):
    schedule = Schedule(128, policy=policy, target_ms=30)
    found = sample.chunk_settings(Spec("default", "ref", schedule=schedule))
    assert found["prefill_step"] == (None if policy == "table" else 128)
    assert ("chunk_policy" in found) == (policy == "adaptive")
    assert sample.chunk_settings(Spec("default", "mlx-lm", schedule=Schedule(64))) == {"prefill_step": 64}


def test_a_step_ahead_reaches_every_run(bench, capsys):
    for flags, chosen in (((), None), (("--async-scheduling",), True), (("--no-async-scheduling",), False)):
        children = Children()
        assert bench(children, *flags, "--repeats", "1", "--json") == 0
        assert {spec.async_scheduling for spec in children.specs} == {chosen}
        assert json.loads(capsys.readouterr().out)["settings"]["async_scheduling"] is chosen


def test_ctrl_c_reports_once_every_step_was_seen(bench, capsys):
    assert bench(Children(4, KeyboardInterrupt())) == 130
    assert "prefill_step 32 / unchunked: 0.125" in capsys.readouterr().out
    assert bench(Children(3, KeyboardInterrupt())) == 130
    assert capsys.readouterr().out == ""


def test_a_run_without_overlap_fails(bench, capsys):
    class Alone(Children):
        def __call__(self, measure, spec, threads):
            run = super().__call__(measure, spec, threads)
            first, long, late = run.timings
            return replace(run, timings=(first, long, replace(late, arrival_s=0.0)))

    assert bench(Alone()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ref prefill_step 32, repeat 0: no short prompt arrived")


def test_a_place_that_cannot_be_written_is_one_line(bench, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert bench(Children(), out=tmp_path / "file") == 2
    assert "choose another --out" in capsys.readouterr().err
