"""`bench-chunked-prefill`: the workload, the reading of events, the report's arithmetic."""

from dataclasses import replace

import pytest
from tests.helpers.recorded import recorded

from tiny_llm_lab.measure.bench.chunked.command import sections_of
from tiny_llm_lab.measure.bench.chunked.plot import typical
from tiny_llm_lab.measure.bench.chunked.workload import Workload, overlap_complaint
from tiny_llm_lab.measure.bench.latency import contention, victim_itl
from tiny_llm_lab.measure.bench.run import Chunk, chunks_of, chunks_of_steps, timings_of
from tiny_llm_lab.measure.bench.spec import UNCHUNKED, Schedule, prompts_of
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
