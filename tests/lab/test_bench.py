"""`bench-chunked-prefill`: the workload, the reading of events, the report's arithmetic."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.helpers.fake_serving import WordTokenizer
from tests.helpers.recorded import sample

from tiny_llm_lab.bench import chunked_prefill
from tiny_llm_lab.bench.plot import typical
from tiny_llm_lab.bench.recording import Chunk, Sample, chunks_from, from_json, overlap_complaint, to_json
from tiny_llm_lab.bench.report import closing_sentence, report_steps, report_table, victim_itl
from tiny_llm_lab.bench.workload import Workload, build_prompts, exactly
from tiny_llm_lab.types import Timing, UserError

Capture = pytest.CaptureFixture[str]
WORKLOAD = Workload(
    num_long=2, long_tokens=50, long_max_tokens=2, num_short=5, short_tokens=6, short_max_tokens=4
)


# The workload


def test_prompts_have_exactly_the_tokens_that_were_asked_for() -> None:
    kinds = WORKLOAD.kinds()
    assert kinds == ["early", "early", "long", "late", "late", "long", "late"]
    prompts = build_prompts(WORKLOAD, WORKLOAD.arrivals(1.0, 10.0), WordTokenizer().encode)
    assert [len(prompt.content) for prompt in prompts] == [6, 6, 50, 6, 6, 50, 6]
    assert [prompt.sampling.max_tokens for prompt in prompts] == [4, 4, 2, 4, 4, 2, 4]
    assert all(prompt.sampling.ignore_eos for prompt in prompts)


def test_prompts_differ_from_their_first_tokens_on() -> None:
    prompts = build_prompts(WORKLOAD, WORKLOAD.arrivals(1.0, 10.0), lambda text: list(text.encode()))
    starts = {bytes(prompt.content)[:2] for prompt in prompts}
    assert len(starts) == len(prompts)


@pytest.mark.parametrize("length", [1, 4, 5, 64, 1000])
def test_exactly_cuts_and_fills(length: int) -> None:
    assert len(exactly(WordTokenizer().encode, "a b c d ", "e f ", length)) == length


def test_late_prompts_arrive_while_an_unchunked_long_prompt_would_be_in_prefill() -> None:
    early_s, long_s = 1.0, 10.0
    arrivals = WORKLOAD.arrivals(early_s, long_s)
    long_s_at = [at for kind, at in zip(WORKLOAD.kinds(), arrivals, strict=True) if kind == "long"]
    assert long_s_at[0] >= early_s and 0 < long_s_at[1] - long_s_at[0] <= long_s
    number = -1
    for kind, arrival in zip(WORKLOAD.kinds(), arrivals, strict=True):
        number += kind == "long"
        if kind == "late":
            assert 0 < arrival - long_s_at[number] < long_s


@pytest.mark.parametrize(
    "change",
    [{"num_long": 0}, {"num_short": 1}, {"short_tokens": 0}, {"long_tokens": 6}, {"short_max_tokens": 1}],
)
def test_a_workload_that_shows_nothing_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(UserError, match="--"):
        replace(WORKLOAD, **change)


# Reading a run


def test_a_chunk_begins_where_the_event_before_it_ended_or_at_its_arrival() -> None:
    event_s = [1.0, 3.0, 3.5, 6.0, 9.0]
    chunks = chunks_from([(0, 4, 1.0, 1.0), (1, 4, 3.0, 3.0), (1, 6, 6.0, 6.5)], event_s, arrivals=[0.0, 2.0])
    assert chunks == (Chunk(0, 4, 0.0, 1.0), Chunk(1, 4, 2.0, 3.0), Chunk(1, 2, 3.5, 6.5))


def test_spans_and_victims() -> None:
    seen = sample(25)
    assert seen.long_spans() == {1: (2.0, 4.0)}
    assert seen.victims() == [0]
    assert victim_itl(seen) == [0.5, 0.5, 2.0, 0.5]
    assert seen.num_overlapping_arrivals() == 1
    assert overlap_complaint(seen) is None


def test_samples_survive_the_way_through_json() -> None:
    assert from_json(json.loads(json.dumps(to_json(sample(25))))) == sample(25)


def _with(timings: Callable[[tuple[Timing, ...]], tuple[Timing, ...]]) -> Sample:
    return replace(sample(25), timings=timings(sample(25).timings))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (_with(lambda t: (Timing(0.0, (1.0, 1.5)), *t[1:])), "nobody was decoding while long prompt 1"),
        (_with(lambda t: (*t[:2], Timing(4.0, (4.5,)))), "no short prompt arrived"),
        (_with(lambda t: (*t[:2], Timing(1.9, (4.5,)))), "no short prompt arrived"),
        (replace(sample(25), chunks=()), "never in prefill"),
    ],
)
def test_a_run_without_overlap_is_told_apart(changed: Sample, complaint: str) -> None:
    assert complaint in str(overlap_complaint(changed))


# The report


def test_medians_spreads_and_ratios() -> None:
    samples = [sample(25, stall, repeat) for repeat, stall in enumerate((1.0, 3.0, 2.0, 2.0))]
    samples += [sample(999, 8.0, repeat) for repeat in range(4)]
    small, large = report_steps(samples)
    assert (small.prefill_step, small.repeats) == (25, 4)
    assert (small.itl_max_s.median, small.itl_max_s.low, small.itl_max_s.high) == (2.0, 1.0, 3.0)
    assert small.itl_p50_s.median == 0.5 and small.itl_p99_s.median == 2.0
    assert (small.ttft_long_s.median, small.ttft_short_s.median) == (2.0, 2.0)
    assert small.total_s.median == 5.0 and small.output_tokens_per_s.median == 9 / 5.0
    said = closing_sentence([small, large], long_tokens=50)
    assert "Against unchunked" in said
    assert "prefill_step 25 had max ITL 0.25x, p50 ITL 1.00x, long TTFT 0.25x, throughput 2.20x" in said
    assert "shortest total had prefill_step 25" in said


def test_a_step_that_still_cuts_is_not_called_unchunked() -> None:
    steps = report_steps([sample(25), sample(40)])
    assert "Against prefill_step 40" in closing_sentence(steps, long_tokens=50)
    assert report_table(steps, 50, plain=True).columns[-1].header == "max ITL vs prefill_step 40"
    assert "nothing to compare" in closing_sentence(steps[:1], long_tokens=50)


def test_the_typical_sample_is_the_median_one() -> None:
    stalls = [5.0, 1.0, 3.0]
    assert typical([sample(25, stall) for stall in stalls]) == sample(25, 3.0)


def test_the_order_is_balanced() -> None:
    order = chunked_prefill.measuring_order([1, 2, 3], 2)
    assert order == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1)]
