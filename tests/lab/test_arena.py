"""The arena: equal runs have equal scores, and a worse scheduler has a lower one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.arena import command
from tiny_llm_lab.measure.simulate.run import SimulatedEngine
from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.metrics import e2e_s, worst_slowdown
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types import Timing

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


def test_a_bad_budget_is_one_line(capsys):
    assert cli.main(["arena", "--max-num-batched-tokens", "many"]) == 2
    assert capsys.readouterr().err == "error: a budget must be a number of tokens or slo, not 'many'\n"
