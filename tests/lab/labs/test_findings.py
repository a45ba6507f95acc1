"""Conclusions from made-up samples: other data, other sentences and verdicts."""

from contextlib import nullcontext

import pytest
from tests.helpers.lab_rows import record, row, verdict, verdicts

from tiny_llm_lab.measure.bench.report import Row
from tiny_llm_lab.measure.ink import CHUNKS, OTHER, color_of
from tiny_llm_lab.measure.labs.effect import effect_of, in_words
from tiny_llm_lab.measure.labs.experiments import compare, hol, itl, mixed, null, prefix, stress, sweep
from tiny_llm_lab.measure.labs.lab import meeting_problem, met_share, overlap_problem, require_gaps
from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.types import UserError

# hol


def test_hol_says_what_the_stall_is_and_what_chunks_do():
    off = row("off", stall_s=0.2, stall_steps=20.0, ttft_long_s=0.21)
    better = hol.finding(
        [off, row("512", stall_s=0.025, stall_steps=2.5, ttft_long_s=0.3)], 4096, [8, 9], None
    )
    assert "wait 200.0 ms for one token, 20.0 times" in better.conclusion[0]
    assert "longest gap with chunks is 8.00 times lower" in better.conclusion[1]
    assert verdicts(better) == "yes yes yes no"
    same = hol.finding([off, row("512", stall_s=0.2, stall_steps=20.0, ttft_long_s=0.21)], 4096, [8, 8], None)
    assert "longest gap with chunks did not change" in same.conclusion[1]
    assert verdicts(same) == "yes no no yes"


STEPS = [(4096, 0, 8), (4096, 1, 9), (5000, 0, 10), (512, 0, 1)]


@pytest.mark.parametrize(("num_tokens", "decodes", "count"), STEPS)
def test_steps_are_counted_by_the_scheduler(num_tokens, decodes, count):
    assert hol.step_count("ref", num_tokens, 512, decodes) == count


def test_a_long_prompt_that_meets_no_decodes_is_a_problem():
    meets = LoadRun([record("stream", 0.0, 1.0, 5.0), record("long", 2.0, 4.0)])
    late = LoadRun([record("stream", 0.0, 1.0, 5.0), record("long", 2.0, 6.0)])
    early = LoadRun([record("stream", 0.0, 3.0, 5.0), record("long", 2.0, 4.0)])
    assert overlap_problem([meets]) is None
    for run in (late, early):
        problem = overlap_problem([run])
        assert problem and problem.startswith("only 0 of 1 long prompts were served while")
        assert hol.finding([row("off", stall_s=1.0, stall_steps=2.0)], 1, [8, 9], problem).problem == problem


# compare, itl, mixed


def test_compare_reports_every_ratio():
    rows = [
        row(name, itl_p99_over_p50=ratio, itl_p99_s=itl_s, ttft_p50_s=0.1, output_tokens_per_s=100.0)
        for name, ratio, itl_s in (("off", 12.0, 0.12), ("default", 6.0, 0.06), ("512", 2.5, 0.025))
    ]
    found = compare.finding(rows)
    assert found.conclusion[:3] == [
        "With the smaller chunks the longest pauses between tokens are shorter, first tokens come at the "
        "same time, tokens are made at the same speed.",
        "Without chunks, ITL p99 is 12.0 times p50.",
        "With default, ITL p99 is 6.0 times p50.",
    ]
    assert verdicts(found) == "yes yes yes yes"
    found = compare.finding([rows[2], rows[1], rows[0]])
    assert verdict(found, "ITL p99 drops") == "refuted" and verdict(found, "Throughput") == "confirmed"


def test_itl_says_what_tpot_hides():
    def finding(off, chunked, tpot):
        rows = [
            row(name, itl_p99_over_p50=ratio, itl_max_s=ratio, tpot_p99_over_p50=tpot)
            for name, ratio in (("off", off), ("512", chunked))
        ]
        return itl.finding(rows, None)

    assert verdicts(finding(10.0, 2.5, 1.04)) == "yes yes no"
    assert verdicts(finding(1.1, 1.0, 1.0)) == "no no yes"


def test_mixed_compares_the_classes():
    def finding(short, long, p99=1.0):
        metrics = ("itl_max", "itl_p99", "ttft_p50")
        off = {f"{metric}_{kind}_s": 1.0 for kind in ("short", "long") for metric in metrics}
        chunked = off | {"itl_max_short_s": short, "itl_max_long_s": long, "itl_p99_short_s": p99}
        return mixed.finding([row("off", **off), row("512", **chunked)])

    assert verdicts(finding(0.2, 0.8)) == "yes yes"
    # One pause in 127 gaps is not in their p99, and shorter pauses in more gaps are.
    assert verdicts(finding(0.2, 0.8, p99=4.0)) == "yes yes"
    assert verdicts(finding(0.8, 0.2)) == "yes no"
    assert verdicts(finding(1.0, 1.0)) == "no no"


# sweep


def sweep_rows():
    samples = {"256": (0.9, 0.010), "512": (0.6, 0.020), "1024": (0.5, 0.040), "4096": (0.4, 0.160)}
    return [
        row(name, ttft_p50_s=ttft, itl_p99_s=itl_s, output_tokens_per_s=100.0)
        for name, (ttft, itl_s) in samples.items()
    ]


@pytest.mark.parametrize(("slo_s", "name"), [(0.015, "256"), (0.040, "1024"), (1.0, "4096"), (0.009, None)])
def test_the_chosen_budget_has_the_lowest_ttft_inside_the_slo(slo_s, name):
    best = sweep.chosen(sweep_rows(), slo_s)
    assert (best.name if best else None) == name
    said = sweep.finding(sweep_rows(), slo_s, None).conclusion[0]
    assert f"choose {name}:" in said if name else "No budget meets" in said


POLICIES = [(0.02, "inside; against 1024,"), (0.05, "outside; against 1024,")]


@pytest.mark.parametrize(("itl_s", "where"), POLICIES)
def test_the_policy_is_no_fixed_budget(itl_s, where):
    policy = row("slo", ttft_p50_s=0.1, itl_p99_s=itl_s, output_tokens_per_s=900.0)
    found = sweep.finding([*sweep_rows(), policy], 0.04, None)
    assert "choose 1024:" in found.conclusion[0] and where in found.conclusion[1]
    assert found.claims == sweep.finding(sweep_rows(), 0.04, None).claims


def test_a_sweep_refutes_what_is_not_so():
    found = verdicts(sweep.finding(sweep_rows(), 0.04, None))
    assert found == "yes yes yes no no"
    found = verdicts(sweep.finding(sweep_rows()[::-1], 0.04, None))
    assert found.startswith("no no ")


def test_a_sweep_has_a_peak_only_where_it_is_above_all_others_in_every_round():
    speeds = {"256": 100.0, "512": (150.0, 151.0, 149.0), "1024": 100.0, "4096": 100.0}
    rows = [row(name, ttft_p50_s=1.0, itl_p99_s=1.0, output_tokens_per_s=x) for name, x in speeds.items()]
    assert verdict(sweep.finding(rows, 1.0, None), "Throughput peaks at 512") == "confirmed"
    rows[2] = row("1024", ttft_p50_s=1.0, itl_p99_s=1.0, output_tokens_per_s=(100.0, 160.0, 140.0))
    assert verdict(sweep.finding(rows, 1.0, None), "Throughput peaks at 512") == "not measurable"
    assert verdict(sweep.finding(rows[2:], 1.0, None), "Throughput peaks at 512") == "not measurable"


# stress


def test_a_round_overlaps_when_all_shorts_come_within_the_prefill():
    long = record("long", 0.0, 1.0, 1.1)
    inside = LoadRun([long, record("short", 0.1, 2.0), record("short", 0.9, 2.0)])
    outside = LoadRun([long, record("short", 0.1, 2.0), record("short", 1.05, 2.0)])
    assert [stress.is_overlapping(run) for run in (inside, outside)] == [True, False]
    assert stress.overlap_problem([inside] * 9 + [outside]) is None
    problem = stress.overlap_problem([inside] * 8 + [outside] * 2)
    assert problem and "in 8 of 10 rounds" in problem
    assert stress.finding([row("off", short_s=1.0, long_s=1.0)] * 3, problem).problem == problem


def test_stress_compares_shorts_and_long():
    off, same = row("off", short_s=1.0, long_s=1.0), row("512", short_s=1.0, long_s=1.05, ahead=0.0)
    found = stress.finding([off, same, row("512, 256 each", short_s=0.5, long_s=1.2, ahead=1.0)], None)
    assert verdicts(found) == "no no yes no"
    assert "0% of the shorts begin before the long one does, 100% when" in found.conclusion[-1]
    found = stress.finding(
        [off, row("512", short_s=0.5, long_s=0.6, ahead=1.0), row("x", short_s=1.0, long_s=1.0, ahead=1.0)],
        None,
    )
    assert verdicts(found) == "yes yes no yes"


def test_a_colour_means_one_variant_in_every_lab():
    names = ("off", "256", "512", "1024", "2048", "4096", "slo", "512, 256 each")
    assert len({color_of(name) for name in names}) == len(names)
    assert color_of("default") == CHUNKS and color_of("lone long prompt") == OTHER


def test_words_name_what_is_clear_and_what_is_not():
    steady, noisy = row("off", a=1.0), Row("off", {"a": [1.0, 5.0, 0.2]})
    faster = effect_of("throughput", row("512", a=2.0), steady, "a")
    unclear = effect_of("ITL p99", Row("512", {"a": [2.0, 0.4, 3.0]}), noisy, "a")
    assert in_words(unclear, faster, faster) == (
        "With the smaller chunks first tokens come later, tokens are made faster; ITL p99 varies too much "
        "to tell."
    )


def test_prefills_count_that_met_decodes_of_others():
    decodes, meets = record("short", 0.0, 1.0, 2.0, 5.0), record("long", 2.0, 4.0)
    before, after = record("long", 5.5, 6.0, 9.0), record("long", 0.2, 0.5)
    assert met_share(LoadRun([decodes, meets]), "long") == 1.0
    assert met_share(LoadRun([decodes, meets, before]), "long") == 0.5
    # The first token of `decodes` comes when `after` has its only one, which is no decode.
    assert met_share(LoadRun([decodes, after])) == 0.0
    assert meeting_problem([LoadRun([decodes, meets]), LoadRun([decodes, after])], "long") == (
        "in a run only 0% of the long prompts were computed while another request was decoding, and 50% "
        "should be: run it again on a quieter machine"
    )
    assert meeting_problem([LoadRun([decodes, meets])], "long") is None


# what a round has not measured


SAVED = [
    ((0.42, 0.73, 0.82), "not measurable"),
    ((0.65, 0.66, 0.70), "confirmed"),
    ((0.72, 0.80, 0.75), "refuted"),
    ((0.40, 0.50, 0.45), "refuted"),
    ((0.66, 0.66), "not measurable"),
    ((0.60, 0.66, 0.66), "not measurable"),
]


@pytest.mark.parametrize(("saved", "held"), SAVED)
def test_rounds_on_both_sides_of_the_hit_rate_refute_nothing(saved, held):
    rows = [
        Row(name, {"cached_tokens": [992.0] * 3, "hit_rate": [0.6613] * len(saved), "saved": list(saved)})
        for name in ("cache on", "cache off")
    ]
    samples = {"ttft_next_s": [1.0] * len(saved)}
    rows = [Row(each.name, {**each.samples, **samples}) for each in rows]
    found = prefix.finding(rows, 1000, 16)
    assert verdict(found, "A hit rate is the share of the prefill's work that is free") == held


@pytest.mark.parametrize("missing", [(0.001, None, None), (None, 0.001, 0.001), (0.001, 0.001, None)])
def test_a_budget_without_itl_in_a_round_is_no_candidate(missing):
    rows = [Row(each.name, dict(each.samples)) for each in sweep_rows()]
    rows[0] = Row("256", {**rows[0].samples, "itl_p99_s": missing})
    assert sweep.chosen(rows[1:], 0.015) is None
    found = sweep.finding(rows, 0.015, None)
    assert "No budget meets" in found.conclusion[0] and "with 512" in found.conclusion[0]
    assert "Left out, as a round has no ITL: 256." in found.conclusion
    assert "256" not in next(each.measured for each in found.claims if each.text.startswith("4096"))
    none = sweep.finding([rows[0]], 0.015, None)
    assert none.problem is not None and not none.claims


READ_TIMES = [((2.0, 2.0, 2.0), True), ((2.0, 2.0, 2.1), False), ((2.0,), False)]


@pytest.mark.parametrize(("times", "is_starved"), READ_TIMES)
def test_one_stream_that_is_read_at_once_is_refused(times, is_starved):
    fine = LoadRun([record("stream", 0.0, 1.0, 2.0), record("long", 0.0, 3.0, 3.0)])
    other = LoadRun([record("stream", 0.0, 1.0, 2.0), record("stream", 0.0, *times)])
    with pytest.raises(UserError, match="in 1 of 2 rounds") if is_starved else nullcontext():
        require_gaps([fine, other])


def test_without_streams_some_answer_needs_gaps():
    at_once, one, fine = (record("short", 0.0, *times) for times in ((3.0, 3.0), (3.0,), (3.0, 3.5)))
    for enough in ([at_once, fine], [one], [one, fine]):
        require_gaps([LoadRun(enough)])
    for lacking in ([at_once], [at_once, one], [at_once, at_once]):
        with pytest.raises(UserError, match="in 1 of 2 rounds"):
            require_gaps([LoadRun([fine]), LoadRun(lacking)])


def test_the_null_has_an_effect_only_where_there_is_one():
    def pair(itl):
        return [
            row(name, itl_p99_s=x, ttft_p50_s=1.0, output_tokens_per_s=100.0)
            for name, x in (("off", 1.0), ("512", itl))
        ]

    assert verdicts(null.finding(pair(1.01))) == "yes yes yes"
    assert verdicts(null.finding(pair(0.5))) == "no yes yes"
