"""`simulate`: the reference's scheduler under a virtual clock, with costs that can be added up by hand."""

import math

import pytest
from tests.helpers.simulating import counted_schedules, replica_config, run, simulation_config

from tiny_llm_lab.simulate.cluster import find_capacity, simulate
from tiny_llm_lab.simulate.outcome import Slo, outcome
from tiny_llm_lab.simulate.replica import Replica
from tiny_llm_lab.simulate.stats import FinishedRequest, RunStats
from tiny_llm_lab.simulate.traffic import SimRequest, draw_requests, parse_lengths
from tiny_llm_lab.solution import load_scheduling

# One replica


@pytest.mark.parametrize("fast_forward", [True, False])
def test_one_request_step_by_step(fast_forward: bool) -> None:
    # 20 prompt tokens in steps of 8, 8 and 4, then a token a second.
    stats = run([SimRequest(0, 3.0, 20, 5)], fast_forward=fast_forward)
    assert stats.finished == [FinishedRequest(0, 3.0, 23.0, 27.0, 20, 5, 0)]
    assert stats.gaps == {1.0: 4}
    assert (stats.num_steps, stats.num_tokens, stats.busy_s) == (7, 24, 24.0)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_prompt_that_arrives_shows_in_the_gaps_of_the_others(fast_forward: bool) -> None:
    # A: prompt at 0 to 4, then alone until B arrives at 5.5. The step from 5 to 6 is on its way: B waits for
    # it, then has 7 of 8 tokens of the step from 6 to 14, and its last 2 beside A from 14 to 17.
    stats = run([SimRequest(0, 0.0, 4, 6), SimRequest(1, 5.5, 9, 1)], fast_forward=fast_forward)
    a, b = sorted(stats.finished, key=lambda each: each.number)
    assert (a.first_s, a.last_s, a.num_late_gaps) == (4.0, 18.0, 1)
    assert (b.first_s, b.last_s) == (17.0, 17.0)
    assert stats.gaps == {1.0: 3, 8.0: 1, 3.0: 1}


def test_conservation_of_tokens() -> None:
    requests = draw_requests(40, 0.02, 0.3, parse_lengths("chat"), 5, 60)
    stats = run(requests, num_blocks=100)
    assert stats.num_preemptions == 0
    assert stats.num_tokens == sum(each.num_prompt_tokens + each.num_output_tokens - 1 for each in requests)
    assert sum(stats.gaps.values()) == sum(each.num_output_tokens - 1 for each in requests)
    assert sorted(each.number for each in stats.finished) == list(range(40))


CASES = {
    "poisson": {},
    "bursts": {"burstiness": 0.1},
    "one place": {"max_num_seqs": 1},
    "blocks run out": {"num_blocks": 20, "rate": 5.0},
    "fair": {"policy": "fair", "rate": 3.0},
    "priority": {"policy": "priority", "rate": 3.0},
    "threshold": {"long_prefill_token_threshold": 3},
    "alternate": {"step_mode": "alternate"},
    "grid": {"chunk_grid": 4},
    "noise": {"noise": 0.3},
    "three replicas": {"num_replicas": 3, "rate": 3.0},
    "least loaded": {"num_replicas": 3, "rate": 3.0, "route": "least-loaded"},
    "slo": {"budget": "slo"},
    "slo with noise": {"budget": "slo", "noise": 0.3, "rate": 3.0},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_fast_forward_changes_no_digit(name: str, seed: int) -> None:
    options = CASES[name]
    llm = load_scheduling("ref")
    fast, slow = (
        simulate(llm, simulation_config(seed=seed, fast_forward=on, **options)) for on in (True, False)
    )
    assert fast == slow
    if name == "blocks run out":
        assert fast.num_preemptions > 0, "the case was to show preemption"


def test_fast_forward_takes_fewer_steps_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_schedules(monkeypatch)
    outcome = simulate(load_scheduling("ref"), simulation_config())
    assert len(calls) < outcome.num_steps / 3


# Replicas


def test_round_robin_and_least_loaded() -> None:
    # The first request keeps its replica busy; each of the rest finishes before the next arrives.
    requests = [SimRequest(0, 0.0, 8, 50)] + [SimRequest(n, 10.0 * n, 4, 1) for n in (1, 2, 3)]
    in_turn = run(requests, num_replicas=2)
    balanced = run(requests, num_replicas=2, route="least-loaded")
    assert sum(in_turn.gaps.values()) == sum(balanced.gaps.values()) == 49
    assert max(in_turn.gaps) == 5.0, "request 2 is computed beside request 0"
    assert max(balanced.gaps) == 1.0, "no later request shares the replica of request 0"


def test_least_loaded_takes_the_first_of_equally_loaded_replicas() -> None:
    # Both are idle when request 0 arrives, and have one request each when request 2 does. Replicas are alike,
    # so only the order of the statistics, replica by replica, shows which one was taken.
    requests = [SimRequest(0, 0.0, 40, 1), SimRequest(1, 0.0, 4, 20), SimRequest(2, 10.0, 4, 1)]
    stats = run(requests, num_replicas=2, route="least-loaded")
    assert [(each.number, each.first_s) for each in stats.finished] == [(0, 40.0), (2, 44.0), (1, 4.0)]


def test_a_request_counts_as_load_until_its_last_step_is_over() -> None:
    replica = Replica(load_scheduling("ref"), replica_config(), 5.0)
    replica.submit(SimRequest(0, 0.0, 8, 1))
    replica.run_until(2.0)
    assert replica.now_s == 8.0
    assert [replica.num_unfinished(now_s) for now_s in (2.0, 7.9, 8.0)] == [1, 1, 0]


def test_looking_at_a_replica_does_not_cut_its_steps_short(monkeypatch: pytest.MonkeyPatch) -> None:
    # least-loaded looks at every replica at every arrival.
    calls = counted_schedules(monkeypatch)
    all_stats, counts = [], []
    for looks in ([], [6.5, 7.5, 9.0, 11.0]):
        replica = Replica(load_scheduling("ref"), replica_config(), 5.0)
        replica.submit(SimRequest(0, 0.0, 4, 20))
        for until_s in looks:
            replica.run_until(until_s)
            assert replica.now_s == math.ceil(until_s) and replica.num_unfinished(until_s) == 1
        replica.run_until(math.inf)
        all_stats.append(replica.stats)
        counts.append(len(calls))
        calls.clear()
    assert all_stats[0] == all_stats[1]
    assert counts[0] == counts[1] == 1 + math.ceil(19 / 8)


# Outcomes


def finished(
    number: int, first_s: float, last_s: float, num_tokens: int, num_late: int = 0
) -> FinishedRequest:
    return FinishedRequest(number, float(number), first_s, last_s, 10, num_tokens, num_late)


def test_outcome_by_hand() -> None:
    stats = RunStats(
        [finished(0, 1.0, 3.0, 5), finished(1, 2.5, 8.0, 12, num_late=1)], num_steps=4, busy_s=6.0
    )
    stats.gaps.update({0.5: 14, 1.5: 1})
    result = outcome(stats, Slo(itl_s=0.5, ttft_s=1.5), num_replicas=2)
    assert (result.total_s, result.ttft.p50_s, result.ttft.p99_s) == (8.0, 1.0, 1.5)
    assert result.itl is not None and (result.itl.p50_s, result.itl.p90_s, result.itl.p99_s) == (
        0.5,
        0.5,
        1.5,
    )
    assert result.tpot is not None and result.tpot.p50_s == 0.5
    assert (result.goodput, result.attainment, result.utilisation) == (1 / 8, 0.5, 6 / 16)
    assert not result.meets(Slo(0.5, 1.5)) and result.meets(Slo(1.5, 1.5)) and not result.meets(Slo(1.5, 1.4))


@pytest.mark.parametrize(
    ("num_tokens", "num_late", "want"),
    [(100, 0, True), (100, 1, False), (101, 1, True), (202, 2, True), (202, 3, False)],
)
def test_one_gap_in_a_hundred_may_be_late(num_tokens: int, num_late: int, want: bool) -> None:
    assert Slo(0.1, 9.0).holds(finished(0, 1.0, 2.0, num_tokens, num_late)) == want


@pytest.mark.parametrize("highest", [0.013, 0.9, 1.0, 7.3, 300.0])
def test_capacity_finds_the_edge(highest: float) -> None:
    assert highest / 1.021 <= find_capacity(lambda rate: rate <= highest) <= highest


def test_capacity_without_an_edge() -> None:
    assert find_capacity(lambda rate: True) == float("inf")
    assert find_capacity(lambda rate: False) == 0.0
