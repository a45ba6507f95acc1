"""`simulate` with batch-class requests: who gives way to whom, and what is told."""

import json
import random
from dataclasses import dataclass, replace

import pytest
from tests.helpers.scheduling import POLICIES
from tests.helpers.simulating import MEASURED, forty_chats, run

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.simulate.cluster import simulate
from tiny_llm_lab.measure.simulate.outcome import Throughput, outcome
from tiny_llm_lab.measure.simulate.replica import FinishedRequest, ReplicaStats
from tiny_llm_lab.measure.simulate.traffic import SimRequest
from tiny_llm_lab.runtime.metrics import Slo
from tiny_llm_lab.runtime.solution import load_scheduling
from tiny_llm_lab.types import PriorityClass, Timing

Capture = pytest.CaptureFixture[str]


# One replica


def interactive(stats: ReplicaStats) -> ReplicaStats:
    """`stats` with its interactive requests only, in the order of their numbers."""
    served = [each for each in stats.finished if each.request.priority_class == "interactive"]
    return replace(stats, finished=sorted(served, key=lambda each: each.request.number))


def num_batch_preemptions(stats: ReplicaStats) -> int:
    served = [each for each in stats.finished if each.request.priority_class == "batch"]
    return sum(each.num_preemptions for each in served)


def test_an_interactive_request_takes_a_place_in_a_full_house() -> None:
    # A and B have both places: prompts to 8, then 2 tokens in 2 seconds. At 11 the step to 12 is on its way.
    # Then C has its prompt beside A's token, to 19, and B goes; it computes 4 + 3 tokens again from 23 on.
    requests = [
        SimRequest(0, 0.0, 4, 20, priority_class="batch"),
        SimRequest(1, 0.0, 4, 20, priority_class="batch"),
        SimRequest(2, 11.0, 6, 3),
    ]
    stats = run(requests, max_num_seqs=2)
    [of_c] = interactive(stats).finished
    assert of_c == FinishedRequest(requests[2], Timing(11.0, (19.0, 21.0, 23.0)), 0)
    assert num_batch_preemptions(stats) == 1
    assert stats.num_tokens == (4 + 19) * 2 + (6 + 2) + 6, "of B, 6 tokens had been computed before it went"


@dataclass(frozen=True)
class ASecond:
    """A step takes a second, whatever is in it: batch class cannot make it longer."""

    def seconds(self, num_tokens: int, attention_tokens: int, kv_tokens_read: int) -> float:
        return 1.0


def mixture(seed: int) -> list[SimRequest]:
    """Sixty requests of few tokens at full seconds, about every second one batch class."""
    rng, arrival_s, requests = random.Random(seed), 0.0, []
    for number in range(60):
        num_prompt, num_output = rng.choice((1, 5, 20, 40)), rng.randrange(1, 20)
        kind: PriorityClass = "batch" if rng.random() < 0.5 else "interactive"
        requests.append(SimRequest(number, arrival_s, num_prompt, num_output, kind))
        arrival_s += rng.choice((0.0, 3.0, 60.0))
    return requests


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_others_do_not_notice_when_steps_get_no_longer(policy: str, seed: int) -> None:
    requests = mixture(seed)
    together, alone = (
        run(asked, ASecond(), policy=policy, kv_tokens=18 * 4)
        for asked in (requests, [each for each in requests if each.priority_class == "interactive"])
    )
    assert interactive(together).finished == interactive(alone).finished
    assert num_batch_preemptions(together) > 0, "or there is room for all, and this shows nothing"


@pytest.mark.parametrize(
    "options", [{"max_num_seqs": 2}, {"replicas": 3, "rate": 9.0, "route": "least-loaded"}, {"budget": "slo"}]
)
def test_batch_class_gives_way_and_every_request_finishes(options: dict[str, object]) -> None:
    setting = forty_chats(**({"batch_share": 0.5, "kv_tokens": 960, "rate": 3.0} | options))
    result = simulate(load_scheduling("ref"), setting, MEASURED)
    assert result.batch is not None and result.batch.num_preemptions > 0
    assert result.num_requests == result.batch.num_requests == 20


# Outcomes


def finished(
    number: int, arrival_s: float, *token_s: float, batch: bool = False, num_preemptions: int = 0
) -> FinishedRequest:
    kind: PriorityClass = "batch" if batch else "interactive"
    request = SimRequest(number, arrival_s, 10 * (1 + batch), len(token_s), kind)
    return FinishedRequest(request, Timing(arrival_s, token_s), num_preemptions)


def test_an_outcome_is_about_interactive_requests() -> None:
    served = [
        finished(0, 0.0, 1.0, 1.5, 2.0, 2.5, 3.0),
        finished(1, 1.0, 90.0, 95.0, batch=True, num_preemptions=2),
        finished(2, 2.0, 3.5, 4.0, 7.5, 8.0),
        finished(3, 2.0, 99.0, 99.5, 100.0, batch=True),
    ]
    stats = ReplicaStats(served, num_steps=4, num_tokens=80, busy_s=60.0)
    idle, slo = ReplicaStats(), Slo(itl_s=0.5, ttft_s=1.5)
    result = outcome([stats, idle], slo)
    alone = outcome([replace(stats, finished=served[::2]), idle], slo)
    assert result.batch == Throughput(2, 40, 5, 100.0, 0.05, 2) and alone.batch is None
    assert (result.utilisation, result.tokens_per_step) == (60 / 200, 20), (
        "a replica is busy with both classes"
    )
    assert replace(result, batch=None, utilisation=alone.utilisation) == alone
    assert (result.num_requests, result.total_s, result.goodput, result.num_preemptions) == (2, 8.0, 1 / 8, 0)
    assert result.meets(Slo(3.5, 1.5)), "however long batch class waited"


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
