"""`bench-chunked-prefill`: the workload, the reading of events, the report's arithmetic."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.recorded import recorded

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import fresh, sample
from tiny_llm_lab.measure.bench.chunked import workload
from tiny_llm_lab.measure.bench.chunked.command import sections_of, typical
from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.latency import contention, victim_itl
from tiny_llm_lab.measure.bench.run import Chunk, chunks_of, chunks_of_steps, timings_of
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, Spec, prompts_of
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import Completion, PrefillEvent, StepPlan, StepStats, Timing, TokenEvent, UserError

WORKLOAD = Workload(num_long=2, long_tokens=50, long_max_tokens=2, num_short=5, short_tokens=6, max_tokens=4)


# The workload


def test_prompts_have_exactly_the_tokens_that_were_asked_for():
    requests = WORKLOAD.requests(1.0, 10.0)
    assert [each.kind for each in requests] == ["early", "early", "long", "late", "late", "long", "late"]
    prompts = prompts_of(requests, 100)
    assert [len(prompt.content) for prompt in prompts] == [6, 6, 50, 6, 6, 50, 6]
    assert [prompt.sampling.max_tokens for prompt in prompts] == [4, 4, 2, 4, 4, 2, 4]
    assert all(prompt.sampling.ignore_eos for prompt in prompts)
    assert [prompt.arrival_s for prompt in prompts] == [each.arrival_s for each in requests]


def test_late_prompts_arrive_while_an_unchunked_long_prompt_would_be_in_prefill():
    early_s, long_s = 1.0, 10.0
    requests = WORKLOAD.requests(early_s, long_s)
    long_at = [each.arrival_s for each in requests if each.kind == "long"]
    assert long_at[0] >= early_s and 0 < long_at[1] - long_at[0] <= long_s
    number = -1
    for request in requests:
        number += request.kind == "long"
        if request.kind == "late":
            assert 0 < request.arrival_s - long_at[number] < long_s


def test_long_prompts_must_be_longer_than_short_ones():
    with pytest.raises(UserError, match="--long-tokens must be above --short-tokens"):
        replace(WORKLOAD, long_tokens=6)


# Reading a run


def test_a_chunk_begins_where_the_event_before_it_ended_or_at_its_arrival():
    # The clock of the run says 100 at its start; the last chunk of a prompt ends with its first token.
    events = [
        PrefillEvent(0, 4, 4, 101.0),
        PrefillEvent(1, 4, 6, 103.0),
        TokenEvent(0, 7, "", 103.5),
        PrefillEvent(1, 6, 6, 106.0),
        TokenEvent(1, 7, "", 106.5),
    ]
    timings = (Timing(0.0, (1.0,)), Timing(2.0, (6.5,)))
    assert chunks_of(events, 100.0, timings) == (
        Chunk(0, 4, 0.0, 1.0),
        Chunk(1, 4, 2.0, 3.0),
        Chunk(1, 2, 3.5, 6.5),
    )


def test_chunks_of_an_engine_are_the_prompt_tokens_of_its_steps():
    requests = (Request("early", 4, 3), Request("long", 6, 2))
    # A decode's token is no chunk.
    plans = ({"0": 4}, {"0": 1, "1": 5}, {"0": 1, "1": 1}, {"1": 1})
    steps = [
        (StepPlan(plan), StepStats(100.0 + at, 100.75 + at, 0, 0, 0, 0)) for at, plan in enumerate(plans)
    ]
    timings = (Timing(0.0, (0.8, 1.8, 2.8)), Timing(0.0, (2.8, 3.8)))
    found = (Chunk(0, 4, 0.0, 0.8), Chunk(1, 5, 1.0, 1.75), Chunk(1, 1, 2.0, 2.8))
    assert chunks_of_steps(steps, requests, 100.0, timings) == found, "the last ends with the first token"


def test_times_count_from_the_start_of_the_run_and_answers_must_be_whole():
    requests = (Request("early", 3, 2, 1.0),)
    done = Completion(0, 3, (7, 7), "", "length", Timing(101.0, (102.0, 103.0)))
    assert timings_of(requests, [done]) == (Timing(1.0, (2.0, 3.0)),)
    with pytest.raises(UserError, match="request 0 of the benchmark: has an answer of 1 tokens instead of 2"):
        timings_of(requests, [replace(done, timing=Timing(101.0, (102.0,)))])
    with pytest.raises(UserError, match="request 0 of the benchmark: too long"):
        timings_of(requests, [replace(done, error="too long")])
    with pytest.raises(UserError, match="0 completions for 1"):
        timings_of(requests, [])


def test_spans_and_victims():
    seen = recorded()
    assert seen.long_spans() == {1: (2.0, 4.0)}
    assert seen.victims() == [0]
    assert victim_itl(seen) == [0.5, 0.5, 2.0, 0.5]
    assert overlap_complaint(seen) is None


def test_work_and_memory_are_metrics_where_they_are_known():
    assert contention(recorded())["computed_per_useful"] is None
    known = contention(replace(recorded(), num_computed_tokens=102, peak_bytes=7))
    # 6 + 50 + 6 tokens of prompts, and 4 + 1 + 1 of answers that are computed.
    assert (known["computed_per_useful"], known["peak_bytes"]) == (102 / 68, 7)


FIRST, LONG, LATE = recorded().timings


@pytest.mark.parametrize(
    ("timings", "chunks", "complaint"),
    [
        ((Timing(0.0, (1.0, 1.5)), LONG, LATE), True, "no request was decoding while long prompt 1"),
        ((FIRST, LONG, Timing(4.0, (4.5,))), True, "no short prompt arrived"),
        ((FIRST, LONG, Timing(1.9, (4.5,))), True, "no short prompt arrived"),
        ((FIRST, LONG, LATE), False, "never in prefill"),
    ],
)
def test_a_run_without_overlap_is_told_apart(timings, chunks, complaint):
    run = replace(recorded(), timings=timings, chunks=recorded().chunks if chunks else ())
    assert complaint in str(overlap_complaint(run))


# The report


def test_medians_spreads_and_ratios():
    stalls = [recorded(stall_s) for stall_s in (1.0, 3.0, 2.0, 2.0)]
    groups = {Schedule(UNCHUNKED): [recorded(8.0)] * 4, Schedule(25): stalls}
    together, classes = sections_of(groups, "title")
    small, _ = together.rows
    of = small.to_json()["metrics"]
    assert small.name == "prefill_step 25" and len(of["total_s"]["samples"]) == 4
    assert [of["itl_max_s"][key] for key in ("median", "min", "max")] == [2.0, 1.0, 3.0]
    assert (of["itl_p50_s"]["median"], of["itl_p99_s"]["median"]) == (0.5, 2.0)
    assert of["itl_p99_over_p50"]["median"] == 4.0
    assert (of["ttft_long_s"]["median"], of["ttft_short_s"]["median"]) == (2.0, 2.0)
    assert (of["total_s"]["median"], of["output_tokens_per_s"]["median"]) == (5.0, 9 / 5.0)
    ratios = {each.name: each.value for each in together.ratios if each}
    assert ratios == pytest.approx(
        {
            "ITL max, prefill_step 25 / unchunked": 2 / 8,
            "ITL p50, prefill_step 25 / unchunked": 1.0,
            "TTFT long, prefill_step 25 / unchunked": 2 / 8,
            "out tok/s, prefill_step 25 / unchunked": 11 / 5,
        }
    )
    assert together.notes[-1] == "prefill_step 25 has the shortest total."
    assert [row.name for row in classes.rows[:2]] == ["prefill_step 25, short", "prefill_step 25, long"]
    short, long = classes.rows[:2]
    # Pooled in each run: gaps of the early and the late request, and of the long one.
    assert (short.median("itl_p99_s"), long.median("itl_p99_s")) == (2.0, 0.5)
    assert (short.median("ttft_p50_s"), short.median("ttft_p99_s")) == (1.0, 2.0)


def test_the_typical_run_is_the_median_one():
    assert typical([recorded(stall) for stall in (5.0, 1.0, 3.0)]) == recorded(3.0)


# `bench-chunked-prefill` as a command: its processes, its files, and how it ends


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
        for module in (fresh, workload):
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
