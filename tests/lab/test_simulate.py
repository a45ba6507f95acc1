"""`simulate`: the reference's scheduler under a virtual clock, with costs that can be added up by hand."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tiny_llm_lab import cli
from tiny_llm_lab.models.shapes import parse_shape
from tiny_llm_lab.simulate.budget import TokenBudget
from tiny_llm_lab.simulate.capacity import capacity
from tiny_llm_lab.simulate.cluster import Route, replay
from tiny_llm_lab.simulate.cost import Calibrated, load_calibration, roofline
from tiny_llm_lab.simulate.ledger import Ledger, Served
from tiny_llm_lab.simulate.outcome import Slo, outcome
from tiny_llm_lab.simulate.replica import Machine, Replica
from tiny_llm_lab.simulate.setting import Setting, simulate
from tiny_llm_lab.simulate.traffic import LENGTHS, SimRequest, draw_requests, parse_lengths
from tiny_llm_lab.solution import load_scheduling
from tiny_llm_lab.types import SchedulerConfig, UserError

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class PerToken:
    """A second per token: seconds are tokens, and sums are exact."""

    def seconds(self, num_tokens: int, num_attended: int, num_stored: int) -> float:
        return float(num_tokens)


def machine(**options: object) -> Machine:
    config = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 64} | {
        key: options.pop(key) for key in list(options) if key in SchedulerConfig.__dataclass_fields__
    }
    values = {"num_blocks": 32, "block_size": 4, "cost": PerToken()} | options
    return Machine(load_scheduling("ref"), SchedulerConfig(**config), **values)  # type: ignore[arg-type]


def run(
    requests: list[SimRequest], num_replicas: int = 1, route: Route = "round-robin", **options: object
) -> Ledger:
    return replay(requests, machine(**options), TokenBudget, num_replicas, route, itl_slo_s=5.0)


# Traffic


def test_the_same_seed_gives_the_same_requests_closer_together() -> None:
    slow, fast = (draw_requests(50, rate, 0.5, LENGTHS["chat"], 3, 4096) for rate in (1.0, 4.0))
    assert [each.arrival_s for each in fast] == [each.arrival_s / 4 for each in slow]
    assert [each.num_prompt_tokens for each in fast] == [each.num_prompt_tokens for each in slow]
    assert slow != draw_requests(50, 1.0, 0.5, LENGTHS["chat"], 4, 4096)


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 5.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    requests = draw_requests(20_000, 8.0, burstiness, LENGTHS["chat"], 0, 4096)
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    # Of a gamma distribution: variance / mean^2 = 1 / shape. Twenty thousand draws are within a few percent.
    spread = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
    assert mean == pytest.approx(1 / 8, rel=0.06)
    assert spread == pytest.approx(1 / burstiness, rel=0.1)


def test_lengths_have_their_medians_and_fit_the_model() -> None:
    requests = draw_requests(5001, 1.0, 1.0, parse_lengths("sharegpt"), 0, 100_000)
    prompts = sorted(each.num_prompt_tokens for each in requests)
    assert prompts[2500] == pytest.approx(1730, rel=0.06)
    tight = draw_requests(500, 1.0, 1.0, parse_lengths("documents"), 0, 300)
    assert all(min(each.num_prompt_tokens, each.num_output_tokens) >= 1 for each in tight)
    assert max(each.num_prompt_tokens + each.num_output_tokens for each in tight) == 300
    assert draw_requests(1, 1.0, 1.0, parse_lengths("fixed:7:5"), 0, 99) == [SimRequest(0, 0.0, 7, 5)]


@pytest.mark.parametrize("text", ["fixed", "fixed:1", "fixed:0:3", "fixed:a:3", "novels"])
def test_lengths_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--lengths"):
        parse_lengths(text)


# Step costs


def test_roofline_of_an_8b_model() -> None:
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


def test_calibration_files(tmp_path: Path) -> None:
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


# One replica


@pytest.mark.parametrize("fast_forward", [True, False])
def test_one_request_step_by_step(fast_forward: bool) -> None:
    # 20 prompt tokens in steps of 8, 8 and 4, then a token a second.
    ledger = run([SimRequest(0, 3.0, 20, 5)], fast_forward=fast_forward)
    assert ledger.served == [Served(0, 3.0, 23.0, 27.0, 20, 5, 0)]
    assert ledger.gaps == {1.0: 4}
    assert (ledger.num_steps, ledger.num_tokens, ledger.busy_s) == (7, 24, 24.0)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_prompt_that_arrives_shows_in_the_gaps_of_the_others(fast_forward: bool) -> None:
    # A: prompt at 0 to 4, then alone until B arrives at 5.5. The step from 5 to 6 is on its way: B waits for
    # it, then has 7 of 8 tokens of the step from 6 to 14, and its last 2 beside A from 14 to 17.
    ledger = run([SimRequest(0, 0.0, 4, 6), SimRequest(1, 5.5, 9, 1)], fast_forward=fast_forward)
    a, b = sorted(ledger.served, key=lambda each: each.number)
    assert (a.first_s, a.last_s, a.num_late_gaps) == (4.0, 18.0, 1)
    assert (b.first_s, b.last_s) == (17.0, 17.0)
    assert ledger.gaps == {1.0: 3, 8.0: 1, 3.0: 1}


def test_conservation_of_tokens() -> None:
    requests = draw_requests(40, 0.02, 0.3, parse_lengths("chat"), 5, 60)
    ledger = run(requests, num_blocks=100)
    assert ledger.num_preemptions == 0
    assert ledger.num_tokens == sum(each.num_prompt_tokens + each.num_output_tokens - 1 for each in requests)
    assert sum(ledger.gaps.values()) == sum(each.num_output_tokens - 1 for each in requests)
    assert sorted(each.number for each in ledger.served) == list(range(40))


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
    setting = setting_of(seed=seed, **CASES[name])
    llm = load_scheduling("ref")
    fast, slow = (simulate(llm, replace(setting, fast_forward=on)) for on in (True, False))
    assert fast == slow
    if name == "blocks run out":
        assert fast.num_preemptions > 0, "the case was to show preemption"


def setting_of(**options: object) -> Setting:
    config = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "max_model_len": 400} | {
        key: options.pop(key) for key in list(options) if key in SchedulerConfig.__dataclass_fields__
    }
    values = {
        "num_requests": 40, "rate": 1.0, "burstiness": 1.0, "lengths": parse_lengths("chat"), "seed": 0,
        "num_replicas": 1, "route": "round-robin", "budget": 64, "num_blocks": 200, "block_size": 16,
        "cost": Calibrated(16, (0.01, 0.0, 0.0, 1e-6), (0.001, 1e-3, 1e-7, 0.0)), "slo": Slo(0.05, 2.0),
        "safety": 1.2, "noise": 0.0, "fast_forward": True,
    } | options  # fmt: skip
    return Setting(config=SchedulerConfig(**config), **values)  # type: ignore[arg-type]


def test_fast_forward_takes_fewer_steps_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load_scheduling("ref")
    calls = []
    schedule = llm.Scheduler.schedule  # type: ignore[attr-defined]
    monkeypatch.setattr(
        llm.Scheduler, "schedule", lambda self, budget=None: calls.append(budget) or schedule(self, budget)
    )
    outcome = simulate(llm, setting_of())
    assert len(calls) < outcome.num_steps / 3


# Replicas


def test_round_robin_and_least_loaded() -> None:
    # The first request keeps its replica busy; the others are over before the next one comes.
    requests = [SimRequest(0, 0.0, 8, 50)] + [SimRequest(n, 10.0 * n, 4, 1) for n in (1, 2, 3)]
    in_turn = run(requests, num_replicas=2)
    balanced = run(requests, num_replicas=2, route="least-loaded")
    assert sum(in_turn.gaps.values()) == sum(balanced.gaps.values()) == 49
    assert max(in_turn.gaps) == 5.0, "request 2 is computed beside request 0"
    assert max(balanced.gaps) == 1.0, "everybody avoids the replica of request 0"


def test_a_request_counts_as_load_until_its_last_step_is_over() -> None:
    replica = Replica(machine(), TokenBudget(), 5.0)
    replica.submit(SimRequest(0, 0.0, 8, 1))
    replica.run_until(2.0)
    assert replica.now_s == 8.0
    assert [replica.load(now_s) for now_s in (2.0, 7.9, 8.0)] == [1, 1, 0]


# What it came to


def served(number: int, first_s: float, last_s: float, num_tokens: int, num_late: int = 0) -> Served:
    return Served(number, float(number), first_s, last_s, 10, num_tokens, num_late)


def test_outcome_by_hand() -> None:
    ledger = Ledger(
        0.5, [served(0, 1.0, 3.0, 5), served(1, 2.5, 8.0, 12, num_late=1)], num_steps=4, busy_s=6.0
    )
    ledger.gaps.update({0.5: 14, 1.5: 1})
    result = outcome(ledger, Slo(itl_s=0.5, ttft_s=1.5), num_replicas=2)
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
    assert Slo(0.1, 9.0).holds(served(0, 1.0, 2.0, num_tokens, num_late)) == want


@pytest.mark.parametrize("highest", [0.013, 0.9, 1.0, 7.3, 300.0])
def test_capacity_finds_the_edge(highest: float) -> None:
    assert highest / 1.021 <= capacity(lambda rate: rate <= highest) <= highest


def test_capacity_without_an_edge() -> None:
    assert capacity(lambda rate: True) == float("inf")
    assert capacity(lambda rate: False) == 0.0


# The command

SMALL = ["simulate", "--requests", "20", "--lengths", "fixed:300:20", "--rate", "5"]


def test_command_prints_a_row_for_each_budget_and_slo(capsys: Capture) -> None:
    assert cli.main([*SMALL, "--sweep", "128", "256"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["budget", "128", "256", "slo"]
    assert "assumed, not measured: qwen3-8b at 1500 GB/s" in said.err


def test_command_as_json_is_the_same_every_time(capsys: Capture) -> None:
    documents = []
    for extra in ([], ["--step-by-step"]):
        assert cli.main([*SMALL, "--json", "--budget", "slo", "--noise", "0.1", *extra]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["runs"] == documents[1]["runs"]
    assert documents[0]["settings"]["itl_slo_ms"] == 50 and documents[0]["step_cost"]["overhead_s"] == 0.001
    run = documents[0]["runs"][0]
    assert run["budget"] == "slo" and run["num_requests"] == 20 and run["itl"]["max_s"] < 0.05


def test_command_searches_the_capacity(capsys: Capture) -> None:
    assert cli.main([*SMALL, "--capacity", "--json", "--ttft-slo-ms", "150"]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["rate"] > 1 and run["ttft"]["p99_s"] <= 0.15 and run["itl"]["p99_s"] <= 0.05


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [(["--requests", "0"], "--requests"), (["--rate", "0"], "--rate"), (["--budget", "x"], "budget is"),
     (["--budget", "8"], "max_num_batched_tokens (8)"), (["--solution", "mlx-lm"], "has no BlockPool"),
     (["--shape", "gpt"], "unknown model"), (["--gb-s", "0"], "--gb-s"), (["--lengths", "x"], "--lengths"),
     (["--capacity", "--itl-slo-ms", "1"], "no rate is low enough"), (["--safety", "0.5"], "--safety")],
)  # fmt: skip
def test_command_refuses_what_it_cannot_simulate(argv: list[str], complaint: str, capsys: Capture) -> None:
    assert cli.main([*SMALL, *argv]) == 2
    assert complaint in capsys.readouterr().err
