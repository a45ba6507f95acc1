"""`simulate` with batch-class requests: who gives way to whom, no step skipped too many, and what is told."""

import json
import math
import random
from dataclasses import dataclass, replace

import pytest
from tests.helpers.simulating import counted_schedules, run, simulation_config
from tests.helpers.soak import POLICIES

from tiny_llm_lab import cli
from tiny_llm_lab.simulate.cluster import simulate
from tiny_llm_lab.simulate.outcome import BatchOutcome, Slo, outcome
from tiny_llm_lab.simulate.stats import FinishedRequest, RunStats
from tiny_llm_lab.simulate.traffic import SimRequest
from tiny_llm_lab.solution import load_scheduling
from tiny_llm_lab.types import PriorityClass

Capture = pytest.CaptureFixture[str]


# One replica


def by_number(stats: RunStats) -> dict[int, tuple[float, float]]:
    """When each request had its first and its last token."""
    return {each.number: (each.first_s, each.last_s) for each in stats.finished}


@pytest.mark.parametrize("fast_forward", [True, False])
def test_an_interactive_request_takes_a_place_in_a_full_house(fast_forward: bool) -> None:
    # A and B have both places: prompts to 8, then 2 tokens in 2 seconds. At 11 the step to 12 is on its way.
    # Then C has its prompt beside A's token, to 19, and B goes; it computes 4 + 3 tokens again from 23 on.
    requests = [
        SimRequest(0, 0.0, 4, 20, priority_class="batch"),
        SimRequest(1, 0.0, 4, 20, priority_class="batch"),
        SimRequest(2, 11.0, 6, 3),
    ]
    stats = run(requests, max_num_seqs=2, fast_forward=fast_forward)
    assert by_number(stats)[2] == (19.0, 23.0)
    assert stats.gaps == {2.0: 2}, "gaps of interactive requests only"
    assert (stats.num_preemptions, stats.num_batch_preemptions) == (0, 1)
    assert stats.num_tokens == (4 + 19) * 2 + (6 + 2) + 6, "of B, 6 tokens had been computed before it went"
    assert [
        each.priority_class == "batch" for each in sorted(stats.finished, key=lambda each: each.number)
    ] == [1, 1, 0]


@dataclass(frozen=True)
class ASecond:
    """A step takes a second, whatever is in it: batch class cannot make it longer."""

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        return 1.0


def mixture(seed: int, at_full_seconds: bool = False) -> list[SimRequest]:
    """Sixty requests of few tokens, about every second one batch class."""
    rng, arrival_s, requests = random.Random(seed), 0.0, []
    for number in range(60):
        num_prompt, num_output = rng.choice((1, 5, 20, 40)), rng.randrange(1, 20)
        kind: PriorityClass = "batch" if rng.random() < 0.5 else "interactive"
        requests.append(SimRequest(number, arrival_s, num_prompt, num_output, kind))
        arrival_s += rng.choice((0.0, 3.0, 60.0)) if at_full_seconds else rng.expovariate(1 / 20)
    return requests


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_others_do_not_notice_when_steps_get_no_longer(policy: str, seed: int) -> None:
    requests = mixture(seed, at_full_seconds=True)
    room = {"policy": policy, "num_blocks": 18, "cost": ASecond()}
    together, alone = (
        run(asked, **room) for asked in (requests, [r for r in requests if r.priority_class == "interactive"])
    )
    assert by_number(alone).items() <= by_number(together).items()
    assert together.gaps == alone.gaps and together.num_preemptions == alone.num_preemptions
    assert together.num_batch_preemptions > 0, "or there is room for all, and this shows nothing"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("num_blocks", [18, 64])
def test_fast_forward_skips_no_step_that_batch_class_changes(
    policy: str, places: int, num_blocks: int
) -> None:
    num_preempted = 0
    for seed in range(12):
        options = {"policy": policy, "max_num_seqs": places, "num_blocks": num_blocks}
        fast, slow = (run(mixture(seed), fast_forward=on, **options) for on in (True, False))
        assert by_number(fast) == by_number(slow), f"seed {seed}"
        assert fast == slow, f"seed {seed}"
        num_preempted += fast.num_batch_preemptions
    assert num_preempted > 0, "the cases were to show that batch class gives way"


CASES = {
    "two places": {"max_num_seqs": 2},
    "bursts": {"burstiness": 0.1, "rate": 3.0},
    "fair": {"policy": "fair", "rate": 3.0},
    "priority": {"policy": "priority", "rate": 3.0},
    "threshold": {"long_prefill_token_threshold": 3, "rate": 2.0},
    "alternate": {"step_mode": "alternate", "rate": 2.0},
    "grid": {"chunk_grid": 4, "rate": 2.0},
    "noise": {"noise": 0.3, "rate": 3.0},
    "least loaded": {"num_replicas": 3, "rate": 9.0, "route": "least-loaded"},
    "slo with noise": {"budget": "slo", "noise": 0.3, "rate": 3.0},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_fast_forward_changes_no_digit_with_batch_class(name: str, seed: int) -> None:
    options = {"batch_share": 0.5, "num_blocks": 60} | CASES[name]
    llm = load_scheduling("ref")
    fast, slow = (
        simulate(llm, simulation_config(seed=seed, fast_forward=on, **options)) for on in (True, False)
    )
    assert fast == slow
    assert fast.batch is not None and fast.batch.num_preemptions > 0, "the case was to show preemption"


@pytest.mark.parametrize("waiting", [False, True])
def test_fast_forward_skips_steps_of_batch_class_too(waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # With all slots taken no batch-class request is admitted, so steps are skipped while the third waits.
    calls = counted_schedules(monkeypatch)
    requests = [SimRequest(0, 0.0, 2, 40), SimRequest(1, 0.0, 2, 40, priority_class="batch")]
    if waiting:
        requests.append(SimRequest(2, 0.0, 2, 1, priority_class="batch"))
    assert run(requests, max_num_seqs=2).num_steps == 40 + waiting
    assert len(calls) == 1 + math.ceil(39 / 4) + waiting, "4 tokens of each fit in a step of 8"


# Outcomes


def test_an_outcome_is_about_interactive_requests() -> None:
    finished = [
        FinishedRequest(0, 0.0, 1.0, 3.0, 10, 5, 0),
        FinishedRequest(1, 1.0, 90.0, 95.0, 20, 7, 6, priority_class="batch"),
        FinishedRequest(2, 2.0, 3.5, 8.0, 10, 12, 1),
        FinishedRequest(3, 2.0, 99.0, 100.0, 30, 3, 2, priority_class="batch"),
    ]
    stats = RunStats(finished, num_steps=4, num_tokens=80, num_batch_preemptions=2, busy_s=60.0)
    stats.gaps.update({0.5: 15})
    result = outcome(stats, Slo(itl_s=0.5, ttft_s=1.5), num_replicas=2)
    alone = outcome(replace(stats, finished=finished[::2]), Slo(itl_s=0.5, ttft_s=1.5), num_replicas=2)
    assert result.batch == BatchOutcome(2, 50, 10, 100.0, 0.1, 2) and alone.batch is None
    assert (result.utilisation, result.tokens_per_step) == (60 / 200, 20), (
        "a replica is busy with both classes"
    )
    assert replace(result, batch=None, utilisation=alone.utilisation) == alone
    assert (result.num_requests, result.total_s, result.goodput, result.num_preemptions) == (2, 8.0, 1 / 8, 0)
    assert result.meets(Slo(0.5, 1.5)), "however long batch class waited"


SMALL = ["simulate", "--requests", "20", "--lengths", "fixed:300:20", "--rate", "60", "--max-num-seqs", "8"]


def test_command_tells_of_batch_class_in_its_own_lines(capsys: Capture) -> None:
    assert cli.main([*SMALL, "--batch-share", "0.5", "--sweep", "128"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:3]] == ["budget", "128", "slo"]
    assert [line.split(" requests")[0] for line in said[3:]] == [
        "batch class, budget 128: 10",
        "batch class, budget slo: 10",
    ]
    assert all("out tok/s" in line and line.endswith(" preempted") for line in said[3:])


def test_json_has_null_without_batch_class_requests(capsys: Capture) -> None:
    documents = []
    for extra in ([], ["--batch-share", "0"], ["--batch-share", "0.5"]):
        assert cli.main([*SMALL, "--json", *extra]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    silent, zero, half = documents
    assert silent["runs"] == zero["runs"]
    for document in (silent, zero):
        assert document["runs"][0]["batch"] is None and document["settings"]["batch_share"] == 0
    assert half["settings"]["batch_share"] == 0.5 and half["runs"][0]["num_requests"] == 10
    batch = half["runs"][0]["batch"]
    assert (batch["num_requests"], batch["num_output_tokens"]) == (10, 200) and batch["num_preemptions"] > 0


def test_human_report_without_batch_class_is_a_table_and_nothing_else(capsys: Capture) -> None:
    assert cli.main([*SMALL, "--batch-share", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_capacity_is_judged_by_interactive_requests(capsys: Capture) -> None:
    found = []
    for more in ([], ["--batch-share", "0.5", "--requests", "40"]):
        argv = [*SMALL, *more, "--capacity", "--json", "--ttft-slo-ms", "400", "--budget", "256"]
        assert cli.main(argv) == 0
        found.append(json.loads(capsys.readouterr().out)["runs"][0])
    alone, mixed = found
    assert mixed["ttft"]["p99_s"] <= 0.4 and mixed["itl"]["p99_s"] <= 0.05
    assert mixed["rate"] > 1.2 * alone["rate"], "batch-class requests do not count for the SLOs"


@pytest.mark.parametrize("share", ["1", "-0.1", "1.5", "nan"])
def test_command_refuses_a_share_that_is_none(share: str, capsys: Capture) -> None:
    assert cli.main([*SMALL, "--batch-share", share]) == 2
    assert "error: --batch-share must be " in capsys.readouterr().err
