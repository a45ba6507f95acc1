"""bench-engine under load: serving in time, what latencies come to, and who is compared with whom."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.recorded import recorded
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.bench.engine import peers, slo
from tiny_llm_lab.bench.engine.config import BenchConfig
from tiny_llm_lab.bench.engine.slo import STATIC, Load, bursts, goodput_metrics, is_inside, sized
from tiny_llm_lab.bench.report import Ratio
from tiny_llm_lab.bench.run import Run
from tiny_llm_lab.bench.sample import CountingNetwork, config_of, measure
from tiny_llm_lab.bench.spec import Request, Schedule, Spec
from tiny_llm_lab.commands import options
from tiny_llm_lab.simulate.traffic import LengthKind
from tiny_llm_lab.types import StepTimeError, Timing

SPEC = Spec("toy", "ref")
PAIR = (Request("early", 1, 2),)


def load(requests: tuple[Request, ...] = PAIR, **others: Any) -> Load:
    return Load(requests, **{"itl_slo_s": 0.5, "ttft_slo_s": 1.0, "decode_s": 0.1, "token_s": 0.001} | others)


def config(**others: Any) -> BenchConfig:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint: Any = None
    return BenchConfig(None, model, checkpoint, SPEC, **others)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "load_checkpoint", lambda *_: toy_checkpoint())


@pytest.mark.usefixtures("toy")
def test_an_engine_serves_requests_that_arrive_and_counts_what_it_computes() -> None:
    requests = (Request("early", 4, 3), Request("long", 20, 2, 0.01))
    run = measure(replace(SPEC, requests=requests, batch_size=2, schedule=Schedule(budget=10)))
    assert run.num_computed_tokens == 4 + 2 + 20 + 1 and run.peak_bytes is not None and run.peak_bytes > 0
    assert [len(timing.token_s) for timing in run.timings] == [3, 2]
    assert run.timings[1].arrival_s == 0.01 < run.timings[1].token_s[0]
    assert sum(chunk.num_tokens for chunk in run.chunks if chunk.prompt_idx == 1) == 20


def test_mlx_lm_is_counted_with_its_padding() -> None:
    requests = (Request("early", 4, 3), Request("early", 12, 3))
    spec = Spec("default", "mlx-lm", requests=requests, batch_size=2, schedule=Schedule(32))
    computed = measure(spec).num_computed_tokens
    assert computed is not None and computed >= 4 + 12 + 2 * 2


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
    fast, slow = bursts(config(load_s=5.0), 0.01, 1e-6), bursts(config(load_s=5.0), 0.01, 1.0)
    assert (fast.ttft_slo_s, slow.ttft_slo_s) == (pytest.approx(4 * 1536e-6), pytest.approx(4 * 128.0))


def test_bursts_are_seeded_fit_the_model_and_have_two_tokens_at_least() -> None:
    found = bursts(config(), 0.01, 0.0002)
    assert found == bursts(config(), 0.01, 0.0002) != bursts(config(seed=1), 0.01, 0.0002)
    assert found.itl_slo_s == pytest.approx(0.05)
    assert found.ttft_slo_s == pytest.approx(4 * 1536 * 0.0002)
    assert all(request.max_tokens >= 2 and request.num_tokens <= 4096 for request in found.requests)


def test_whole_prompts_are_not_cut_and_the_policy_may_cut_them() -> None:
    whole, *fixed, policy = [config_of(spec) for spec in slo.specs_of(SPEC, load())]
    assert (whole.enable_chunked_prefill, policy.enable_chunked_prefill) == (False, True)
    assert whole.max_num_batched_tokens == policy.max_num_batched_tokens == 3 + 32
    assert tuple(each.max_num_batched_tokens for each in fixed) == STATIC
    assert all(each.max_num_batched_tokens >= each.max_num_seqs for each in fixed), "a token for each"


@pytest.mark.usefixtures("toy")
def test_the_policy_serves_a_load_and_says_how_well_it_predicted() -> None:
    given = load((Request("early", 8, 4), Request("early", 40, 3)))
    whole, budget, *_, policy = [measure(spec) for spec in slo.specs_of(SPEC, given)]
    assert all(run.total_s > 0 for run in (whole, budget, policy))
    assert policy.prediction_error is not None and policy.prediction_error.count > 0
    assert whole.prediction_error is None and budget.prediction_error is None


def served(itl_s: float, num_good: int) -> Run:
    """Ten requests in ten seconds; `num_good` of them have their first token in time."""
    ttfts = [0.5 if number < num_good else 2.0 for number in range(10)]
    return Run(PAIR * 10, tuple(Timing(10 - itl_s - ttft, (10 - itl_s, 10.0)) for ttft in ttfts))


def test_the_policy_is_compared_with_the_best_budget_inside_the_slo() -> None:
    whole, *fixed, policy = slo.specs_of(SPEC, load())
    inside = {64: (0.4, 3), 128: (0.5, 4)}
    runs = {whole: [served(9.0, 0)], **{spec: [served(2.0, 0)] for spec in fixed}, policy: [served(0.5, 6)]}
    for spec in fixed:
        if spec.schedule.budget in inside:
            runs[spec] = [served(*inside[spec.schedule.budget])]
    report = slo.section(runs, load())
    found = {each.name: each.value for each in report.ratios if each}
    assert report.notes[-1].startswith("Of the fixed budgets inside the ITL SLO, budget 128 has the best")
    assert found["goodput/s, SLO policy / budget 128"] == pytest.approx(6 / 4, rel=0.2)
    assert found["ITL max, SLO policy / budget 128"] == pytest.approx(1.0)
    assert found["ITL max, SLO policy / whole prompts"] == pytest.approx(0.5 / 9.0)
    none = slo.section({**runs, **{spec: [served(2.0, 0)] for spec in fixed}}, load())
    assert "No fixed budget" in none.notes[-1]
    errors = [replace(served(0.5, 6), prediction_error=StepTimeError(9, p50, 0.3)) for p50 in (0.1, 0.2, 0.4)]
    told = slo.section({**runs, policy: errors[:1]}, load())
    assert told.notes[1] == "Step-time prediction error of the policy: p50 10.0%, p90 30.0%."
    assert told.data["policy_errors"] == [[9, 0.1, 0.3]]
    thrice = slo.section({spec: own * 3 for spec, own in runs.items()} | {policy: errors}, load())
    assert thrice.notes[1] == "Step-time prediction error of the policy: p50 20.0%, p90 30.0%."


def test_peers_get_streams_long_prompts_and_short_ones_that_come_late() -> None:
    own = config(streams=4)
    workload = peers.workload_of(own)
    kinds = [each.kind for each in workload.requests()]
    assert [kinds.count(kind) for kind in ("early", "long", "late")] == [4, 2, 6]
    assert {each.prompt_len for each in workload.requests() if each.kind == "long"} == {512}
    ours, *theirs = peers.specs_of(own, workload)
    assert (ours.solution, ours.schedule, ours.batch_size) == ("ref", Schedule(budget=128 + 12), 12)
    assert [(each.solution, each.schedule.prefill_step) for each in theirs] == [
        ("mlx-lm", 128),
        ("mlx-lm", 2048),
    ]


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
    assert peers.is_loss(metric, Ratio("x", value, value, value)) is loses


def test_a_report_of_peers_says_where_ours_loses() -> None:
    def report(ours_peak: int, theirs_peak: int) -> Any:
        runs = [replace(recorded(), peak_bytes=peak) for peak in (ours_peak, theirs_peak)]
        specs = [replace(SPEC, variant=name) for name in ("engine", "mlx-lm 128")]
        return peers.section({spec: [run] for spec, run in zip(specs, runs, strict=True)}, "x")

    found = report(30, 10)
    assert found.notes[-1] == "ref engine loses in: peak MB, ref engine / ref mlx-lm 128."
    assert found.notes[0] == "ref engine computes in float32, ref mlx-lm 128 computes in float32."
    assert found.columns[1].cell(found.rows[0].samples["computed_per_useful"]) == "-", "not counted"
    assert report(10, 10).notes[-1] == "ref engine loses nowhere."


def test_a_counted_network_counts_padding_and_passes_everything_on() -> None:
    inner = SimpleNamespace(layers=[1, 2])
    network = CountingNetwork(
        type("Inner", (), {"__call__": lambda self, x, cache: cache, "layers": [1, 2]})()
    )
    assert network(mx.zeros((3, 5), mx.int32), cache="kept") == "kept"
    assert network.num_tokens == 15 and network.layers == inner.layers
