"""bench-engine under load: serving in time, what latencies come to, and who is compared with whom."""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tests.helpers.recorded import recorded

from benchmarks.engine import under_load as peers
from benchmarks.engine.config import BenchConfig
from tiny_llm_lab.measure.bench.latency import latencies
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Schedule, Spec
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import Timing

SPEC = Spec("toy", "ref")


def config(**others):
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint = None
    return BenchConfig(None, model, checkpoint, SPEC, **others)


@pytest.mark.usefixtures("toy")
def test_an_engine_serves_requests_that_arrive_and_counts_what_it_computes():
    requests = (Request("early", 4, 3), Request("long", 20, 2, 0.01))
    held = mx.zeros(2**25)  # as weights would be
    mx.eval(held)
    run = measure(replace(SPEC, requests=requests, batch_size=2, schedule=Schedule(budget=10)))
    assert run.num_computed_tokens == 4 + 2 + 20 + 1
    assert run.peak_bytes is not None and 0 < run.peak_bytes < held.nbytes, "above what was held before"
    assert [len(timing.token_s) for timing in run.timings] == [3, 2]
    assert run.timings[1].arrival_s == 0.01 < run.timings[1].token_s[0]
    assert sum(chunk.num_tokens for chunk in run.chunks if chunk.prompt_idx == 1) == 20


def test_mlx_lm_is_counted_with_its_padding():
    requests = (Request("early", 4, 3), Request("early", 12, 3))
    spec = Spec("default", "mlx-lm", requests=requests, batch_size=2, schedule=Schedule(32))
    computed = measure(spec).num_computed_tokens
    assert computed is not None and computed >= 4 + 12 + 2 * 2


def test_latencies_of_two_requests():
    found = latencies((Timing(0.0, (1.0, 1.5, 2.0)), Timing(1.0, (4.0, 5.0))))
    assert (found["ttft_p50_s"], found["ttft_p99_s"]) == (1.0, 3.0)
    assert (found["itl_p50_s"], found["itl_p99_s"], found["itl_max_s"]) == (0.5, 1.0, 1.0)


def test_peers_get_streams_long_prompts_and_short_ones_that_come_late():
    own = config(streams=4)
    workload = peers.workload_of(own)
    kinds = [each.kind for each in workload.requests()]
    assert [kinds.count(kind) for kind in ("early", "long", "late")] == [4, 2, 6]
    assert {each.prompt_len for each in workload.requests() if each.kind == "long"} == {512}
    rounded = replace(own, spec=replace(own.spec, activation_bits=8))
    ours, *theirs = peers.specs_of(rounded, workload)
    assert [each.activation_bits for each in (ours, *theirs)] == [8, "auto", "auto"]
    assert (ours.solution, ours.schedule, ours.batch_size) == ("ref", Schedule(budget=128 + 12), 12)
    assert [(each.solution, each.schedule.prefill_step) for each in theirs] == [
        ("mlx-lm", 128),
        ("mlx-lm", 2048),
    ]


def test_a_report_of_peers_says_where_ours_loses():
    def report(ours_peak, theirs_peak):
        runs = [replace(recorded(), peak_bytes=peak) for peak in (ours_peak, theirs_peak)]
        specs = [replace(SPEC, variant=name) for name in ("engine", "mlx-lm 128")]
        return peers.section({spec: [run] for spec, run in zip(specs, runs, strict=True)}, "x")

    found = report(30, 10)
    assert found.notes[-1] == "ref engine is worse in: peak MB, ref engine / ref mlx-lm 128."
    assert found.notes[0] == "ref engine computes in float32, ref mlx-lm 128 computes in float32."
    assert found.columns[1].cell(found.rows[0].samples["computed_per_useful"]) == "-", "not counted"
    assert report(10, 10).notes[-1] == "ref engine is nowhere worse."
