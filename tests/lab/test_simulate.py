"""`simulate`: the reference's scheduler under a virtual clock, with costs that can be added up by hand."""

import math
from dataclasses import replace

import pytest
from tests.helpers.simulating import (
    MEASURED,
    forty_chats,
    gaps_of,
    run,
)

from tiny_llm_lab.measure.simulate.engine import EngineStats, FinishedRequest
from tiny_llm_lab.measure.simulate.run import outcome, simulate
from tiny_llm_lab.measure.traffic.lengths import draw_requests, parse_lengths
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.metrics import Slo
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types import Timing


def test_one_request_step_by_step():
    # 20 prompt tokens in steps of 8, 8 and 4, then a token a second.
    request = Request("0", 20, 5, 3.0)
    stats = run([request])
    timing = Timing(3.0, (23.0, 24.0, 25.0, 26.0, 27.0))
    assert stats == EngineStats([FinishedRequest(request, timing, 0)], num_steps=7, num_tokens=24, busy_s=24)


def test_a_prompt_that_arrives_shows_in_the_gaps_of_the_others():
    # A: prompt at 0 to 4, then alone until B arrives at 5.5. The step from 5 to 6 is on its way: B waits for
    # it, then has 7 of 8 tokens of the step from 6 to 14, and its last 2 beside A from 14 to 17.
    stats = run([Request("0", 4, 6, 0.0), Request("1", 9, 1, 5.5)])
    times = {each.request.kind: each.timing.token_s for each in stats.finished}
    assert times == {"0": (4.0, 5.0, 6.0, 14.0, 17.0, 18.0), "1": (17.0,)}


def test_a_threshold_cuts_the_prompt_and_a_policy_shares_the_step():
    two = [Request("0", 16, 1, 0.0), Request("1", 16, 1, 0.0)]
    first_s = {
        (threshold, policy): {
            each.request.kind: each.timing.token_s[0]
            for each in run(two, threshold=threshold, policy=policy).finished
        }
        for threshold, policy in ((0, "fcfs"), (4, "fcfs"), (0, "fair"))
    }
    assert first_s[0, "fcfs"] == {"0": 16.0, "1": 32.0}
    assert first_s[4, "fcfs"] == first_s[0, "fair"] == {"0": 32.0, "1": 32.0}, (
        "4 tokens of each in every step"
    )


def test_a_larger_safety_keeps_gaps_shorter():
    longest = []
    for safety in (1.0, 2.0):
        setting = forty_chats(budget="slo", safety=safety, noise=0.1, rate=4.0)
        result = simulate(load_scheduling("ref"), setting, MEASURED)
        assert result.itl is not None
        longest.append(result.itl.p99_s)
    assert longest[1] < 0.9 * longest[0]


def test_conservation_of_tokens():
    requests = draw_requests(40, 0.02, 0.3, parse_lengths("chat"), 5, 60)
    stats = run(requests, kv_tokens=400)
    assert [each.num_preemptions for each in stats.finished] == [0] * 40
    assert stats.num_tokens == sum(each.num_tokens - 1 for each in requests)
    served = {each.request: len(each.timing.token_s) for each in stats.finished}
    assert served == {each: each.max_tokens for each in requests}


def test_when_blocks_run_out_requests_are_preempted_and_finish():
    setting = forty_chats(kv_tokens=400, rate=5.0, burstiness=0.1)
    result = simulate(load_scheduling("ref"), setting, MEASURED)
    roomy = simulate(load_scheduling("ref"), replace(setting, kv_tokens=6400), MEASURED)
    assert result.num_preemptions > 0 == roomy.num_preemptions
    assert result.num_output_tokens == roomy.num_output_tokens


def test_noise_lengthens_and_shortens_steps():
    request = Request("0", 1, 400, 0.0)
    gaps = gaps_of(run([request], max_model_len=401, kv_tokens=404, noise=0.3))
    assert math.exp(sum(map(math.log, gaps)) / len(gaps)) == pytest.approx(1, abs=0.05)
    assert gaps[0] < 0.7 and gaps[-1] > 1.4


# Outcomes


def finished(arrival_s, *token_s, num_preemptions=0):
    request = Request("", 10, len(token_s), arrival_s)
    return FinishedRequest(request, Timing(arrival_s, token_s), num_preemptions)


def test_outcome_by_hand():
    served = [
        finished(0.0, 1.0, 1.5, 2.0, 2.5, 3.0),
        finished(1.0, 2.5, *(3.0 + 0.5 * n for n in range(9)), 8.0, num_preemptions=2),
    ]
    result = outcome(EngineStats(served, num_steps=4, num_tokens=40, busy_s=6.0), Slo(itl_s=0.5, ttft_s=1.5))
    assert result.ttft and result.itl and result.tpot and result.e2e
    assert (result.total_s, result.ttft.p50_s, result.ttft.p99_s) == (8.0, 1.0, 1.5)
    assert (result.itl.p50_s, result.itl.p90_s, result.itl.p99_s) == (0.5, 0.5, 1.0)
    assert (result.tpot.p50_s, result.tpot.max_s) == (0.5, 5.5 / 10)
    assert (result.e2e.p50_s, result.e2e.max_s) == (3.0, 7.0)
    assert (result.goodput, result.attainment, result.utilisation) == (1 / 8, 0.5, 6 / 8)
    assert (result.num_steps, result.tokens_per_step, result.num_preemptions) == (4, 10.0, 2)
    assert (result.requests_per_s, result.output_tokens_per_s) == (2 / 8, 16 / 8)
    assert not result.meets(Slo(0.5, 1.5)) and result.meets(Slo(1.0, 1.5)) and not result.meets(Slo(1.0, 1.4))
