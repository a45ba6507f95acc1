"""bench-engine under load: serving in time, what latencies come to, and who is compared with whom."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab import load_solution
from tiny_llm_lab.bench.engine import peers, slo
from tiny_llm_lab.bench.engine.config import BenchConfig
from tiny_llm_lab.bench.engine.peers import (
    CountingNetwork,
    is_loss,
    metrics_of,
    run_ours,
    useful_tokens,
    workload,
)
from tiny_llm_lab.bench.engine.slo import (
    POLICY,
    STATIC,
    UNCHUNKED,
    Load,
    bursts,
    goodput_metrics,
    is_inside,
    long_prompt,
    scheduler_for,
    sized,
)
from tiny_llm_lab.bench.report import Metrics, Ratio, Row, samples_of
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.spec import Request
from tiny_llm_lab.simulate.traffic import LengthKind
from tiny_llm_lab.types import StepSample, Timing

PAIR = (Request("early", 1, 2),)


def load(requests: tuple[Request, ...] = PAIR, **others: Any) -> Load:
    return Load(requests, **{"itl_slo_s": 0.5, "ttft_slo_s": 1.0, "decode_s": 0.1, "token_s": 0.001} | others)


METRICS = goodput_metrics(Run(PAIR, (Timing(0.0, (1.0, 2.0)),)), load())


def config(**others: Any) -> BenchConfig:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint: Any = None
    return BenchConfig(None, model, checkpoint, **others)


def test_our_engine_serves_requests_that_arrive_and_counts_what_it_computes() -> None:
    llm: Any = load_solution("ref")
    checkpoint = toy_checkpoint()
    own = BenchConfig(llm, llm.build_model(checkpoint), checkpoint, chunk=8)
    requests = (Request("early", 4, 3), Request("long", 20, 2, 0.01))
    run, num_computed, peak_bytes = run_ours(own, requests)
    assert num_computed == useful_tokens(requests) == 4 + 2 + 20 + 1 and peak_bytes > 0
    assert [len(timing.token_s) for timing in run.timings] == [3, 2]
    assert run.timings[1].arrival_s == 0.01 < run.timings[1].token_s[0]
    assert sum(chunk.num_tokens for chunk in run.chunks if chunk.prompt_idx == 1) == 20


def test_latencies_of_two_requests() -> None:
    timings = (Timing(0.0, (1.0, 1.5, 2.0)), Timing(1.0, (4.0, 5.0)))
    requests = (Request("early", 1, 3), Request("early", 1, 2, 1.0))
    found = goodput_metrics(Run(requests, timings), load(requests))
    assert (found["ttft_p50_s"], found["ttft_p99_s"]) == (1.0, 3.0)
    assert (found["itl_p50_s"], found["itl_p99_s"], found["itl_max_s"]) == (0.5, 1.0, 1.0)
    assert (found["total_s"], found["goodput"], found["attainment"]) == (5.0, 0.2, 0.5)
    assert found["output_tokens_per_s"] == 1.0


@pytest.mark.parametrize(("num_gaps", "is_well"), [(99, False), (100, True)])
def test_one_late_gap_in_a_hundred_is_allowed(num_gaps: int, is_well: bool) -> None:
    timing = Timing(0.0, tuple([1.0, 6.0] + [6.0 + i for i in range(1, num_gaps)]))
    assert len(timing.itl_s) == num_gaps
    assert is_inside(timing, itl_slo_s=1.0, ttft_slo_s=1.0) is is_well
    assert not is_inside(timing, itl_slo_s=9.0, ttft_slo_s=0.9)


def test_a_load_is_sized_to_the_machine() -> None:
    kinds = (LengthKind(1.0, 100, 0.0, 10, 0.0),)
    # A request is 0.1 s of prompt and ten eighths of a decode step: 0.2 s, at 60 % of the machine 3 a second.
    assert sized(kinds, 0.08 / 8, 0.001, load_s=20) == (60, pytest.approx(3.0))
    assert sized(kinds, 0.08 / 8, 0.001, load_s=0.1)[0] == 12, "fewer say nothing"
    assert long_prompt(config(load_s=5.0), 1e-6) == 1536
    assert long_prompt(config(load_s=5.0), 1.0) == 128


def test_bursts_are_seeded_fit_the_model_and_have_two_tokens_at_least() -> None:
    found = bursts(config(), 0.01, 0.0002)
    assert found == bursts(config(), 0.01, 0.0002) != bursts(config(seed=1), 0.01, 0.0002)
    assert found.itl_slo_s == pytest.approx(0.05)
    assert found.ttft_slo_s == pytest.approx(4 * 1536 * 0.0002)
    assert all(request.max_tokens >= 2 and request.num_tokens <= 4096 for request in found.requests)


@pytest.mark.parametrize("budget", STATIC)
def test_a_fixed_budget_has_a_token_for_each_running_request(budget: int) -> None:
    scheduler = scheduler_for(load(), f"budget {budget}")
    assert scheduler.max_num_batched_tokens == budget >= scheduler.max_num_seqs


def test_whole_prompts_are_not_cut_and_the_policy_may_cut_them() -> None:
    whole, policy = scheduler_for(load(), UNCHUNKED), scheduler_for(load(), POLICY)
    assert (whole.enable_chunked_prefill, policy.enable_chunked_prefill) == (False, True)
    assert whole.max_num_batched_tokens == policy.max_num_batched_tokens == 3 + 32


def test_the_policy_serves_a_load_and_says_how_well_it_predicted() -> None:
    llm: Any = load_solution("ref")
    checkpoint = toy_checkpoint()
    own = BenchConfig(llm, llm.build_model(checkpoint), checkpoint)
    samples = [StepSample(n, n * n, n, 0.001 * n) for n in (1, 2, 4, 8)]
    given = load((Request("early", 8, 4), Request("early", 40, 3)), samples=samples)
    metrics = {name: slo.run(own, given, name) for name in (UNCHUNKED, "budget 16", POLICY)}
    assert all(each["total_s"] for each in metrics.values()) and len(given.errors) == 1


def test_the_policy_is_compared_with_the_best_budget_inside_the_slo() -> None:
    def run(goodput: float, itl_s: float) -> list[Any]:
        return [METRICS | {"goodput": goodput, "itl_p99_s": itl_s, "itl_max_s": itl_s}]

    runs = {
        UNCHUNKED: run(1.0, 9.0),
        "budget 64": run(1.5, 0.4),
        "budget 128": run(2.0, 0.5),
        "budget 512": run(9.0, 2.0),  # the most, but its p99 ITL is outside
        POLICY: run(3.0, 0.5),
    }

    def report(changes: dict[str, Any], **others: Any) -> Any:
        rows = [Row(name, samples_of(each)) for name, each in (runs | changes).items()]
        return slo.section(rows, load(**others))

    ratios = {each.name: each.value for each in report({}).ratios}
    assert ratios == {
        "goodput, policy / budget 128, the best fixed one inside the ITL SLO": 1.5,
        "max ITL, policy / budget 128, the best fixed one inside the ITL SLO": 1.0,
        "goodput, policy / whole prompts": 3.0,
        "max ITL, policy / whole prompts": 0.5 / 9.0,
    }
    none = report({"budget 64": run(1, 2), "budget 128": run(1, 2)})
    assert "No fixed budget" in none.notes[1] and len(none.ratios) == 2
    told = report({}, errors=[SimpleNamespace(count=9, p50=p50, p90=0.3) for p50 in (0.1, 0.2, 0.4)])
    assert told.notes[1] == "Step-time prediction error of the policy: p50 20.0%, p90 30.0%."
    assert told.data["policy_errors"][0] == [9, 0.1, 0.3]


def test_peers_get_streams_long_prompts_and_short_ones_behind() -> None:
    requests = workload(config(streams=3), first_tokens_s=1.0)
    assert tuple(each.kind for each in requests) == ("early",) * 3 + ("long", "late", "late") * 2
    assert [each.arrival_s for each in requests[2:7]] == [0.0, 1.2, 1.2, 1.2, 2.2]
    assert [each.prompt_len for each in requests[3:6]] == [512, 32, 32]
    assert max(each.num_tokens for each in requests) == 516
    assert useful_tokens(requests) == 3 * (32 + 63) + 2 * (512 + 3) + 4 * (32 + 7)
    assert [each.kind for each in workload(config(streams=3), None)] == ["early"] * 3


def three() -> Run:
    requests = (Request("early", 10, 3), Request("long", 10, 3, 2.0), Request("late", 10, 3, 3.0))
    times = (Timing(0.0, (1.0, 2.0, 6.0)), Timing(2.0, (6.0, 7.0, 8.0)), Timing(3.0, (8.0, 9.0, 10.0)))
    return Run(requests, times)


def test_the_metrics_of_a_run_among_peers() -> None:
    found = metrics_of(three(), num_computed_tokens=54, peak_bytes=7.0)
    assert (found["total_s"], found["output_tokens_per_s"], found["computed_per_useful"]) == (10.0, 0.9, 1.5)
    assert (found["itl_p99_s"], found["itl_max_s"]) == (4.0, 4.0), "of the stream, while the long one waits"
    assert (found["ttft_short_s"], found["ttft_long_s"]) == (5.0, 4.0)


@pytest.mark.parametrize(
    ("metric", "value", "loses"),
    [
        ("output_tokens_per_s", 0.9, True),
        ("output_tokens_per_s", 1.5, False),
        ("itl_max_s", 1.5, True),
        ("itl_max_s", 1.02, False),
        ("peak_bytes", 0.5, False),
    ],
)
def test_less_is_better_except_for_speed(metric: str, value: float, loses: bool) -> None:
    assert is_loss(metric, Ratio("x", value, value, value)) is loses


def test_a_report_of_peers_says_where_ours_loses() -> None:
    ours = metrics_of(Run(PAIR, (Timing(0.0, (1.0, 2.0)),)), 2, 30.0)
    theirs = {**ours, "peak_bytes": 10.0, "output_tokens_per_s": 0.5}

    def report(*metrics: Metrics) -> Any:
        names = ("engine", "mlx-lm 128")
        rows = [Row(name, samples_of([each])) for name, each in zip(names, metrics, strict=True)]
        return peers.section(rows, "x", [], {})

    found = report(ours, theirs)
    assert found.notes == ["engine loses in: peak MB, engine / mlx-lm 128."]
    assert found.columns[2].cell(found.rows[0].samples["itl_p99_s"]) == "-", "no long prompt"
    assert "engine loses nowhere." in report(theirs, theirs).notes


def test_a_counted_network_counts_padding_and_passes_everything_on() -> None:
    inner = SimpleNamespace(layers=[1, 2])
    network = CountingNetwork(
        type("Inner", (), {"__call__": lambda self, x, cache: cache, "layers": [1, 2]})()
    )
    assert network(mx.zeros((3, 5), mx.int32), cache="kept") == "kept"
    assert network.num_tokens == 15 and network.layers == inner.layers
