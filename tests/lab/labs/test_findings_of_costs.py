"""Conclusions of hurts, capacity, prefix and memory from made-up samples."""

import sys

import pytest
from tests.helpers.lab_rows import row, verdicts

from tiny_llm_lab.measure.labs.effect import effect_of, within
from tiny_llm_lab.measure.labs.experiments import capacity, hurts, memory, prefix
from tiny_llm_lab.measure.labs.experiments.capacity import Probe, Slos
from tiny_llm_lab.measure.load.client import LoadRun, RequestRecord
from tiny_llm_lab.measure.traffic.request import LoadRequest


def test_hurts_has_a_sentence_for_each_workload():
    names = list(hurts.WORKLOADS)
    off, samples = row("off", x=1.0), ((1.5, 1.6, 1.5), (1.0, 1.0, 1.0), (0.5, 2.0, 1.0))
    effects = [effect_of("the time", row("256", x=x), off, "x") for x in samples]
    found = hurts.finding([row(name) for name in names], effects)
    assert verdicts(found) == "yes no -"
    assert found.conclusion[-2:] == [
        "Chunks hurt lone long prompt.",
        "Not measurable here: prompts below 100 tokens.",
    ]
    calm = hurts.finding([row(names[0])], effects[1:2])
    assert calm.conclusion[-1] == "Chunks hurt none of the three."


def test_capacity_is_found_by_bisection():
    slos = Slos(0.1, 1.0)
    probes = capacity.search(lambda rate: Probe(rate, rate / 100, 0.5, 1.0), slos, 1.0, 100.0, 6)
    assert [round(probe.rate, 1) for probe in probes] == [10.0, 31.6, 17.8, 13.3, 11.5, 10.7]
    assert capacity.row_of("off", [probes], slos).median("rate") == pytest.approx(10.0)
    assert not Probe(1.0, 0.05, 2.0, 1.0).keeps(slos) and not Probe(1.0, 0.2, 0.5, 1.0).keeps(slos)


def test_capacity_sees_a_stall_that_is_rarer_than_one_gap_in_a_hundred():
    times = (0.0, *(0.5 + 0.001 * i for i in range(300)))
    record = RequestRecord(LoadRequest("x", 1, 301), 0.0, times[-1], times)
    assert capacity.probe_of(1.0, LoadRun([record])).gap_s == 0.5


def test_a_search_needs_a_rate_at_which_prefills_met_decodes():
    alone, met = Probe(1.0, 0.1, 0.1, 0.0), Probe(2.0, 0.1, 0.1, 0.5)
    assert capacity.meeting_problem([[alone, met], [met]]) is None
    problem = capacity.meeting_problem([[alone, met], [alone]])
    assert problem and problem.startswith("in a search at most 0% of the long prompts")


def test_capacity_compares_also_with_nothing():
    assert "every rate we tried" in capacity.finding([row("off", rate=0), row("512", rate=2)]).conclusion[2]
    more = capacity.finding([row("off", rate=1.0), row("512", rate=2.0)])
    assert more.conclusion[2] == "So the capacity with chunks is 2.00 times higher (in every round)."
    less = capacity.finding([row("off", rate=2.0), row("512", rate=1.0)])
    assert [verdicts(each) for each in (more, less)] == ["yes", "no"]


def test_a_search_in_which_no_rate_kept_the_slos_has_capacity_0():
    probes = capacity.search(lambda rate: Probe(rate, rate, 9.0, 1.0), Slos(0.1, 1.0), 1.0, 16.0, 2)
    assert [probe.rate for probe in probes] == [4.0, 2.0]
    row = capacity.row_of("off", [probes] * 3, Slos(0.1, 1.0))
    assert row.samples == {"rate": [0.0] * 3, "gap_s": [2.0] * 3, "ttft_p50_s": [9.0] * 3}


CAPACITIES = [
    ((2.0, 2.0, 2.0), "confirmed"),
    ((0.0, 0.0, 0.0), "refuted"),
    ((2.0, 0.0, 2.0), "not measurable"),
]


@pytest.mark.parametrize(("rates", "verdict"), CAPACITIES)
def test_a_capacity_of_0_is_raised_in_every_round_or_not_at_all(rates, verdict):
    [claim] = capacity.finding([row("off", rate=0.0), row("512", rate=rates)]).claims
    assert claim.verdict == verdict


def test_prefix_counts_hits_in_blocks():
    def finding(cached, saved):
        rate = None if cached is None else cached / 1500
        on = row("on", cached_tokens=(cached,) * 3, hit_rate=(rate,) * 3, saved=saved, ttft_next_s=1 - saved)
        return prefix.finding([on, row("off", ttft_next_s=1.0)], 1000, 16)

    assert verdicts(finding(992, 0.66)) == "no yes yes"
    assert verdicts(finding(1000, 0.4)) == "yes no no"
    assert "does not report" in finding(None, 0.5).conclusion[0]


def test_memory_tells_what_is_saved_of_all_that_is_held():
    def finding(whole, chunk, held):
        rows = [row(str(each), above_held_bytes=each, peak_bytes=each + held) for each in (chunk, whole)]
        return memory.finding(rows, 2048, 256, 10**6, 4)

    real = finding(30e6, 4e6, 20e6)
    assert "save 26.0 MB of a peak of 50.0 MB: 7.5 times less above" in real.conclusion[0]
    assert verdicts(real) == "yes yes no no"
    dense = finding(80e6, 8e6, 1e6)
    assert verdicts(dense).endswith(" - yes")


# What counts as an effect, on samples made up for it


EFFECTS = [
    ((2.0, 2.2, 1.8), "higher", "x is 2.00 times higher (variant / baseline 1.80 to 2.20)"),
    ((0.5, 0.4, 0.6), "lower", "x is 2.00 times lower (variant / baseline 0.40 to 0.60)"),
    ((1.0, 1.1, 0.9), "none", "x did not change (variant / baseline 0.90 to 1.10)"),
    ((1.02, 1.03, 1.01), "none", "x did not change (variant / baseline 1.01 to 1.03)"),
    ((0.5, 1.0, 2.0), "unclear", "x varies too much to tell (variant / baseline 0.50 to 2.00)"),
    ((1.0, None, 1.0, 1.0), "unclear", "x could not be compared"),
    ((2.0, 2.0), "unclear", "x is 2.00 times the baseline's in 2 rounds, too few to tell"),
    ((2.0,), "unclear", "x is 2.00 times the baseline's in 1 round, too few to tell"),
]


@pytest.mark.parametrize(("variant", "kind", "words"), EFFECTS)
def test_an_effect_needs_all_of_three_rounds(variant, kind, words):
    effect = effect_of("x", row("b", x=variant), row("a", x=(1.0,) * len(variant)), "x")
    assert (effect.kind, str(effect)) == (kind, words)


BUSY = [
    ((1.2, 1.3, 2.4), (1.0, 1.0, 2.0), "higher"),  # in each round, however much the machine differs
    ((0.8, 0.8, 1.6), (1.0, 1.0, 2.0), "lower"),
    ((1.08, 1.1, 2.2), (1.0, 1.0, 2.0), "higher"),
    ((1.2, 1.3, 1.9), (1.0, 1.0, 2.0), "unclear"),
    ((0.8, 2.1, 0.8), (1.0, 2.0, 1.0), "unclear"),
    ((1.01, 1.02, 2.6), (1.0, 1.0, 2.0), "unclear"),  # too close to call, and a round that is not
    ((1.2, 1.3, 1.4), (1.0, 1.0, 1.1), "higher"),
    ((1.0, 1.0, 1.1), (1.2, 1.3, 1.4), "lower"),
]


@pytest.mark.parametrize(("variant", "baseline", "kind"), BUSY)
def test_an_effect_is_seen_in_every_round_however_busy_the_machine_was(variant, baseline, kind):
    assert effect_of("x", row("b", x=variant), row("a", x=baseline), "x").kind == kind


RANGES = [
    ((2.0, 2.5, 3.0), True),
    ((1.0, 1.5, 1.9), False),
    ((3.1, 4.0, 5.0), False),
    ((1.9, 2.5, 2.6), None),
    ((1.0, 4.0, 4.0), None),
    ((2.5, None, 2.5, 2.5), None),
    ((2.5, 2.5), None),
]


@pytest.mark.parametrize(("values", "is_within"), RANGES)
def test_a_range_holds_what_all_of_three_rounds_are_in(values, is_within):
    assert within(values, 2, 3) is is_within


def test_what_is_unclear_is_neither_confirmed_nor_refuted():
    base = row("a", x=1.0)
    effects = [effect_of("x", row("b", x=(value, 2.0, 2.0)), base, "x") for value in (0.5, 2.0)]
    assert [effect.is_("higher") for effect in effects] == [None, True]
    assert [effect.is_("none") for effect in effects] == [None, False]


# A prompt that fits in chunks and not in one piece


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not hold a process to RLIMIT_AS")
def test_one_piece_fails_under_a_limit_and_chunks_do_not():
    assert memory.out_of_memory_line().endswith("fails in one piece and succeeds in chunks of 256.")


def test_what_macos_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "not tried, because macOS" in memory.out_of_memory_line()


def test_a_child_that_fails_without_a_limit_proves_nothing(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory, "_succeeds", lambda chunk, room: room > 0)
    assert "fails without a limit, too" in memory.out_of_memory_line()
