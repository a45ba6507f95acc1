"""`simulate`: the reference's scheduler under a virtual clock, with costs that can be added up by hand."""

import json
import math
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.arena import command
from tiny_llm_lab.measure.simulate.run import EngineStats, FinishedRequest, SimulatedEngine, outcome, simulate
from tiny_llm_lab.measure.simulate.setting import Calibrated, Setting, load_calibration, roofline
from tiny_llm_lab.measure.traffic.request import LENGTHS, Request, draw_requests, parse_lengths
from tiny_llm_lab.runtime.console.field_flags import add_field_flags, given_fields
from tiny_llm_lab.runtime.metrics import Slo, e2e_s, worst_slowdown
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types import Timing, UserError

# Steps as some small machine could take them.
MEASURED = Calibrated(16, (0.01, 0.0, 0.0, 1e-6), (0.001, 1e-3, 1e-7, 0.0))


@dataclass(frozen=True)
class PerToken:
    """A second per token: seconds are tokens, and sums are exact."""

    def seconds(self, num_tokens, attention_tokens, kv_tokens_read):
        return float(num_tokens)


def by_hand(**options):
    """Four requests at a time and steps of 8 tokens; `options` are fields of a Setting that change it."""
    small = {"budget": "8", "max_num_seqs": 4, "max_model_len": 64, "kv_tokens": 128, "block_size": 4}
    return Setting(**(small | options))


def run(requests, cost=None, **options):
    """What the engine of by_hand(**options) does; without a `cost`, a second per token."""
    return SimulatedEngine(load_scheduling("ref"), by_hand(**options), cost or PerToken()).replay(requests)


def gaps_of(stats):
    """All gaps between tokens, sorted."""
    return sorted(gap for each in stats.finished for gap in each.timing.itl_s)


def forty_chats(**options):
    """Forty requests of the lengths of chat; `options` change it."""
    small = {
        "requests": 40, "rate": 1.0, "lengths": "chat", "budget": "64", "max_budget": 64, "max_num_seqs": 6,
        "max_model_len": 400, "kv_tokens": 3200, "safety": 1.2,
    }  # fmt: skip
    return Setting(**(small | options))


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
    assert first_s[4, "fcfs"] == first_s[0, "fair"] == {"0": 32.0, "1": 32.0}, "4 tokens of each in a step"


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


# `simulate` from its arguments to its last line


SMALL = ["simulate", "--requests", "20", "--lengths", "fixed:300:20", "--rate", "5"]


def test_command_prints_a_row_for_each_budget_and_slo(capsys):
    assert cli.main([*SMALL, "--sweep", "128", "256"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["budget", "128", "256", "slo"]
    assert "estimated, not measured: qwen3-8b at 1500 GB/s" in said.err


def test_command_as_json_is_the_same_every_time(capsys):
    documents = []
    for _ in range(2):
        assert cli.main([*SMALL, "--json", "--budget", "slo", "--noise", "0.1"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["runs"] == documents[1]["runs"]
    assert documents[0]["settings"]["itl_slo_ms"] == 50 and documents[0]["step_cost"]["overhead_s"] == 0.001
    run = documents[0]["runs"][0]
    assert run["budget"] == "slo" and run["num_requests"] == 20 and run["itl"]["max_s"] < 0.05


# What a simulation is fed: requests drawn from a seed, and the cost of a step


def test_the_same_seed_gives_the_same_requests_closer_together():
    slow, fast = (draw_requests(50, rate, 0.5, LENGTHS["chat"], 3, 4096) for rate in (1.0, 4.0))
    assert [each.arrival_s for each in fast] == [each.arrival_s / 4 for each in slow]
    assert [each.prompt_len for each in fast] == [each.prompt_len for each in slow]
    assert slow != draw_requests(50, 1.0, 0.5, LENGTHS["chat"], 4, 4096)


def test_lengths_have_their_medians_and_fit_the_model():
    requests = draw_requests(5001, 1.0, 1.0, parse_lengths("sharegpt"), 0, 100_000)
    prompts = sorted(each.prompt_len for each in requests)
    assert prompts[2500] == pytest.approx(1730, rel=0.06)
    tight = draw_requests(500, 1.0, 1.0, parse_lengths("documents"), 0, 300)
    assert all(min(each.prompt_len, each.max_tokens) >= 1 for each in tight)
    assert max(each.prompt_len + each.max_tokens for each in tight) == 300
    assert draw_requests(1, 1.0, 1.0, parse_lengths("fixed:7:5"), 0, 99) == [Request("", 7, 5)]


def test_the_requests_are_what_they_always_were():
    assert [
        (each.prompt_len, each.max_tokens, round(each.arrival_s, 9))
        for each in draw_requests(4, 2.0, 0.5, LENGTHS["documents"], 7, 4096)
    ] == [(66, 196, 0.0), (96, 134, 0.146994389), (486, 93, 0.740922289), (98, 97, 1.143451617)]


# Step costs


def test_roofline_of_an_8b_model():
    cost = roofline(parse_shape("qwen3-8b"), gb_per_s=1000, tflop_per_s=100, overhead_s=0.001)
    # 36 layers of 4096 x 128 x 2 x (32 + 8) and 3 x 4096 x 12288 weights, and a head of 151936 x 4096.
    in_layers = 36 * (41_943_040 + 150_994_944)
    assert cost.token_s == pytest.approx(2 * in_layers / 1e14)
    assert cost.weight_s == pytest.approx(2 * (in_layers + 622_329_856) / 1e12)
    assert cost.stored_s == pytest.approx(147_456 / 1e12)
    # One token alone: weights and its own cache. Two thousand: arithmetic.
    assert cost.seconds(1, 1, 1) == pytest.approx(0.001 + cost.weight_s + cost.stored_s)
    assert cost.seconds(2048, 10**7, 2048) == pytest.approx(
        0.001 + 2048 * cost.token_s + 10**7 * cost.attended_s
    )


def test_a_machine_is_a_calibration_file(tmp_path):
    parser = ArgumentParser()
    add_field_flags(parser, Setting)
    file = tmp_path / "step-times.json"
    file.write_text('{"split_tokens": 8, "small": [1, 0, 0, 0], "large": [2, 0, 0, 0]}')
    setting = Setting(**given_fields(parser.parse_args(["--machine", str(file)]), Setting))
    assert setting.step_cost().seconds(9, 0, 0) == 2


def test_calibration_files(tmp_path):
    path = tmp_path / "steps.json"
    path.write_text('{"split_tokens": 32, "small": [0.01, 0, 0, 1e-7], "large": [0.001, 1e-4, 0, 0]}')
    cost = load_calibration(path)
    assert cost == Calibrated(32, (0.01, 0, 0, 1e-7), (0.001, 1e-4, 0, 0))
    assert cost.seconds(32, 5, 1000) == pytest.approx(0.0101)
    assert cost.seconds(33, 5, 1000) == pytest.approx(0.0043)
    for text in ("[]", "{}", "nonsense", '{"split_tokens": 1, "small": [1], "large": [1]}'):
        path.write_text(text)
        with pytest.raises(UserError, match="split_tokens"):
            load_calibration(path)
    with pytest.raises(UserError, match="cannot read"):
        load_calibration(tmp_path / "missing.json")


# The latency policy next to the best static budget, which is chosen with hindsight, on small simulations


_STATIC = ("128", "256", "512")  # larger ones are worse in each of these
_LEAST = 0.98


SETTINGS = [
    Setting(lengths="fixed:4096:128", rate=1.0),
    Setting(lengths="fixed:4096:128", rate=1.0, burstiness=0.25),
    Setting(lengths="fixed:4096:128", rate=2.0, seed=3),
    Setting(lengths="arxiv", rate=0.7),
    Setting(lengths="sharegpt", rate=1.8, burstiness=0.25, noise=0.05, seed=3),
]


@pytest.mark.parametrize(
    "setting",
    SETTINGS,
    ids=["uniform", "uniform, bursts", "uniform, near capacity", "long", "mixed, bursts, noise"],
)
def test_the_policy_serves_what_the_best_static_budget_does(setting):
    llm, small = load_scheduling("ref"), replace(setting, requests=100)
    cost = small.step_cost()
    found = {
        budget: simulate(llm, replace(small, budget=budget), cost).goodput for budget in (*_STATIC, "slo")
    }
    assert found["slo"] >= _LEAST * max(found[budget] for budget in _STATIC), found


# The arena: equal runs have equal scores, and a worse scheduler has a lower one


REF = load_scheduling("ref")
# Busy for a few seconds: short, and with a queue.
BUSY = Setting(requests=60, rate=6.0, burstiness=0.3, lengths="chat", seed=5, max_num_seqs=16)
SHORT = replace(BUSY, requests=20)  # to compare runs with each other


def contest(llm=REF, setting=BUSY, **changes):
    return command.hold(("busy", setting), ("you", llm, replace(setting, **changes)), REF, lambda name: None)


def test_equal_seeds_have_equal_cards_and_others_have_others():
    first = contest(setting=SHORT)
    assert first == contest(setting=SHORT)
    assert first != contest(setting=replace(SHORT, seed=6))


@pytest.mark.parametrize("budget", command.BUDGETS)
def test_the_reference_against_itself_is_equal(budget):
    held = contest(setting=SHORT, budget=budget)
    same = next(run for run in held.static if run.name == budget)
    assert replace(held.entrant, name=budget) == same and held.points(held.entrant) == held.points(same)
    assert held.points(held.best) == 100 and held.gain(held.best) == 0
    assert held.fcfs.name == command.USUAL
    assert all(run.outcome.attainment <= held.best.outcome.attainment for run in held.static)


def test_the_entrants_own_latency_policy_plays():
    asked = []

    class Counting(REF.LatencyPolicy):
        def token_budget(self, *args):
            asked.append(args)
            return super().token_budget(*args)

    entrant = solution(LatencyPolicy=Counting)
    held = contest(entrant, budget="slo")
    assert asked and replace(held.entrant, name="slo") == held.slo


def last_come(name, prompt, arrival_s):
    """Of a queue that serves the last arrival first."""
    return REF.TokenSequence(name, prompt, priority=-int(name), arrival_s=arrival_s)


def solution(**parts):
    names = ("BlockPool", "Scheduler", "TokenSequence", "StepTimeModel", "LatencyPolicy", "BudgetController")
    return SimpleNamespace(**({name: getattr(REF, name) for name in names} | parts))


BAD_SCHEDULERS = [
    (solution(TokenSequence=last_come), {"policy": "priority", "budget": "128"}),
    (REF, {"budget": "16"}),  # prompts wait for decodes
    (REF, {"budget": "8192"}),  # decodes wait for prompts
]


@pytest.mark.parametrize(("llm", "changes"), BAD_SCHEDULERS)
def test_a_bad_scheduler_scores_worse(llm, changes):
    held = contest(llm, **changes)
    assert command.score([held]) < 80
    assert "% fewer requests than the best static budget" in command.conclusion([held])


def test_last_come_first_served_is_unfair():
    held = contest(solution(TokenSequence=last_come), policy="priority", budget="128")
    [same] = [run for run in held.static if run.name == "128"]
    assert held.entrant.slowdown > same.slowdown


def test_a_request_alone_takes_the_time_of_a_request_alone():
    setting = replace(BUSY, budget="8192")
    [served] = SimulatedEngine(REF, setting, setting.step_cost()).replay([Request("", 300, 40, 2.0)]).finished
    assert e2e_s(served.timing) == pytest.approx(command.seconds_alone(served.request, setting.step_cost()))


def test_the_worst_slowdown_is_that_of_one_request():
    kept = Timing(1.0, (2.0, 5.0)), Timing(1.0, (1.5,)), Timing(3.0, ())
    assert worst_slowdown(zip(kept, (2.0, 0.1, 1.0), strict=True)) == pytest.approx(5.0)


@pytest.mark.long
def test_the_traffics_are_near_their_limit():
    """Otherwise every policy keeps the SLOs of all requests, or of none."""
    for name, setting in command.TRAFFICS.items():
        assert contest(setting=replace(setting, requests=40)).best.outcome.attainment > 0.2, name


def test_the_command_prints_a_card(capsys, monkeypatch):
    monkeypatch.setattr(command, "TRAFFICS", {"busy": BUSY})
    assert cli.main(["arena", "--policy", "fair", "--max-num-batched-tokens", "512"]) == 0
    said = capsys.readouterr()
    *table, last = said.out.splitlines()
    rows = [line.split("  ")[0:2] for line in table[1:]]
    assert [row[0] for row in rows] == ["busy"] * 5
    assert "ref" in table[1] and "fcfs 512" in table[2] and "best static" in table[3]
    assert table[1].split()[2:] == table[4].split()[2:], "fair against fair"
    assert last.startswith("ref scores ") and "the best static budget (" in last
    assert f"busy, fair: {command.NUM_RUNS - 1} of {command.NUM_RUNS}" in said.err
