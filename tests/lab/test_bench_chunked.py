"""`bench-chunked-prefill`: the workload, the reading of events, the report's arithmetic."""

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.helpers.recorded import recorded

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import fresh, host, sample
from tiny_llm_lab.measure.bench.chunked import workload
from tiny_llm_lab.measure.bench.chunked.command import section_of
from tiny_llm_lab.measure.bench.chunked.picture import typical
from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.latency import contention, victim_itl
from tiny_llm_lab.measure.bench.run import Chunk, chunks_of, chunks_of_steps, timings_of
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, Spec, prompts_of
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import (
    Arrivals,
    Completion,
    PrefillEvent,
    StepPlan,
    StepStats,
    Timing,
    TokenEvent,
    UserError,
)

WORKLOAD = Workload(num_long=2, long_tokens=50, long_max_tokens=2, num_short=5, short_tokens=6, max_tokens=4)


# The workload


def test_prompts_have_exactly_the_tokens_that_were_asked_for():
    requests = WORKLOAD.requests(10.0)
    assert [each.kind for each in requests] == ["early", "early", "long", "late", "late", "long", "late"]
    prompts = prompts_of(requests, 100)
    assert [len(prompt.content) for prompt in prompts] == [6, 6, 50, 6, 6, 50, 6]
    assert [prompt.sampling.max_tokens for prompt in prompts] == [4, 4, 2, 4, 4, 2, 4]
    assert all(prompt.sampling.ignore_eos for prompt in prompts)
    assert [prompt.arrival_s for prompt in prompts] == [each.arrival_s for each in requests]


@pytest.mark.parametrize("burst", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [2, 3, 4, 9, 128])
def test_long_prompts_wait_for_tokens_and_late_ones_come_within_an_unchunked_prefill(burst, max_tokens):
    requests = replace(WORKLOAD, num_long=3, burst=burst, max_tokens=max_tokens).requests(10.0)
    after = [each.after_tokens for each in requests if each.kind == "long"]
    assert after == sorted(after) and len(set(after[:burst])) == 1
    assert after[0] > 0 and after[-1] < max_tokens, "the answer that is waited for goes on"
    for before, request in pairwise(requests):
        if request.kind == "late":
            assert request.after_tokens == before.after_tokens and 0 < request.arrival_s < 10.0


def test_a_prompt_arrives_with_a_token_of_the_first_answer_and_not_before():
    requests = (Request("early", 1, 9), Request("long", 1, 1, after_tokens=2), Request("late", 1, 1, 5.0, 2))
    prompts = prompts_of(requests, 100)
    pace = sample.Pace(requests, prompts)
    arrivals = Arrivals(prompts)
    assert [arrivals.pop().prompt_idx, arrivals.pop()] == [0, None]
    now_s = time.perf_counter()
    for event in (PrefillEvent(0, 1, 1, now_s), TokenEvent(0, 7, "", now_s), TokenEvent(1, 7, "", now_s)):
        pace(event)
    pace(TokenEvent(0, None, "", now_s))
    assert arrivals.pop() is None, "text that was held back, and another request's token, are no tokens"
    pace(TokenEvent(0, 7, "", now_s - 1))
    assert arrivals.pop().prompt_idx == 1 and arrivals.pop() is None
    assert prompts[2].arrival_s - prompts[1].arrival_s == pytest.approx(5.0)


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


NO_OVERLAP = [
    ((Timing(0.0, (1.0, 1.5)), LONG, LATE), True, "no request was decoding while long prompt 1"),
    ((FIRST, LONG, Timing(4.0, (4.5,))), True, "no short prompt arrived"),
    ((FIRST, LONG, Timing(1.9, (4.5,))), True, "no short prompt arrived"),
    ((FIRST, replace(LONG, arrival_s=2.0), Timing(2.0, (4.5,))), True, "no short prompt arrived"),
    ((FIRST, LONG, LATE), False, "never in prefill"),
]


@pytest.mark.parametrize(("timings", "chunks", "complaint"), NO_OVERLAP)
def test_a_run_without_overlap_is_told_apart(timings, chunks, complaint):
    run = replace(recorded(), timings=timings, chunks=recorded().chunks if chunks else ())
    assert complaint in str(overlap_complaint(run))


# The report


def test_medians_spreads_and_ratios():
    stalls = [recorded(stall_s) for stall_s in (1.0, 3.0, 2.0, 2.0)]
    groups = {Schedule(UNCHUNKED): [recorded(8.0)] * 4, Schedule(25): stalls}
    together = section_of(groups, "title")
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
    said = "0.25 (0.12 to 0.38) and 0.25 times as long with prefill_step 25."
    assert together.notes[0].startswith("Compared with unchunked,") and together.notes[0].endswith(said)


def test_the_typical_run_is_the_median_one():
    assert typical([recorded(stall) for stall in (5.0, 1.0, 3.0)]) == recorded(3.0)


# `bench-chunked-prefill` as a command: its processes, its files, and how it ends


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
        return replace(recorded(stall_s), peak_bytes=9_000_000)


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
    assert "| variant | ITL p50 ms | ITL max ms | TTFT long ms | peak MB |" in out
    assert "| unchunked | 500.0 | 8000.0 | 8000 | 9.0 |" in out and "0.12 and 0.12 times as long" in out
    calibration, *measured = children.specs
    assert not any(each.arrival_s or each.after_tokens for each in calibration.requests)
    assert calibration.batch_size == 1
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
    longs = [each.after_tokens for each in measured[0].requests if each.kind == "long"]
    assert len(longs) == 3 and len(set(longs)) == 1, "a burst of three"
    out = capsys.readouterr().out
    assert "| adaptive, 30 ms |" in out and "times as long with table;" in out


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
    assert "| prefill_step 32 |" in capsys.readouterr().out
    assert bench(Children(5, KeyboardInterrupt())) == 130
    assert "2 each" not in (out := capsys.readouterr().out) and "1 each" in out, "whole rounds only"
    assert bench(Children(3, KeyboardInterrupt())) == 130
    assert capsys.readouterr().out == ""


class Alone(Children):
    """No short prompt comes while the long one is computed, in the first `num_alone` measured runs."""

    def __init__(self, num_alone):
        super().__init__()
        self.num_alone = num_alone

    def __call__(self, measure, spec, threads):
        run = super().__call__(measure, spec, threads)
        first, long, late = run.timings
        is_alone = 1 < len(self.specs) <= 1 + self.num_alone
        return replace(run, timings=(first, long, replace(late, arrival_s=0.0))) if is_alone else run


def test_a_run_without_overlap_is_run_again(bench, capsys):
    children = Alone(2)
    assert bench(children, "--repeats", "1") == 0
    assert [each.schedule.prefill_step for each in children.specs[1:]] == [32, 32, 32, 999999]
    said = capsys.readouterr().err
    assert "ref prefill_step 32, repeat 0: no short prompt arrived" in said and "(try 2 of 3)" in said


def test_a_run_that_never_overlaps_fails(bench, capsys):
    assert bench(Alone(3)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ref prefill_step 32, repeat 0: no short prompt arrived")


@pytest.mark.parametrize(("load", "is_busy"), [(0.0, False), (2.0, False), (2.1, True), (40.0, True)])
def test_a_busy_machine_is_said(bench, capsys, monkeypatch, load, is_busy):
    monkeypatch.setattr(host.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 4)
    assert bench(Children(), "--repeats", "1") == 0
    assert (f"busy before we began (load {load:g}, 4 cores)" in capsys.readouterr().out) == is_busy


def test_a_place_that_cannot_be_written_is_one_line(bench, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert bench(Children(), out=tmp_path / "file") == 2
    assert "choose another --out" in capsys.readouterr().err
