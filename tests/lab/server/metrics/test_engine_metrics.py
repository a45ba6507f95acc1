"""What the metrics come to on workloads whose every step is known."""

import asyncio
import json
import logging
import random
import re
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.fakes import FakeClock
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import EOS, toy_model
from tests.helpers.toy_server import FACTS, Stepped, report_of, toy_engine

from tiny_llm_lab.runtime.solution import load_serving, load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Totals
from tiny_llm_lab.serving.server.routes.metrics import _TABLE, StatsLog, exposition, stats_logged
from tiny_llm_lab.types import SamplingParams, SchedulerConfig, StepPlan
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts


class Metered(Stepped):
    """Every forward pass takes a second of a clock that otherwise stands still."""

    def __init__(self, llm, config, **options):
        clock, self.metrics = FakeClock(), EngineMetrics()

        class Slow(Fragile):
            def __call__(self, *args, **kwargs):
                clock.now += 1
                return super().__call__(*args, **kwargs)

        super().__init__(self.metrics, config, Slow(toy_model(llm)), clock=clock, **options)


LLM = load_serving("ref")
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)


def observed(histogram):
    return sum(histogram.counts), histogram.sum


def ends(metrics):
    return {reason: number for reason, number in metrics.totals().request_success.items() if number}


@pytest.fixture(scope="module")
def three():
    """Four steps of a second: a 16 | a 4, b 3 | a 1, c 3 | a 1, c 1. Queue times 0, 1 and 2 seconds."""
    served = Metered(LLM, CONFIG)
    served.add("a", [97] * 20, max_tokens=3)
    served.add("b", [98] * 3, max_tokens=1)
    served.add("c", [99] * 3, max_tokens=2)
    assert served.metrics.totals().num_requests_waiting == 3
    served.run()
    assert served.clock.now == 4
    return served.metrics


def test_tokens_and_requests_are_counted(three):
    totals = three.totals()
    assert (totals.prompt_tokens, totals.prompt_tokens_computed, totals.generation_tokens) == (26, 26, 6)
    assert (totals.num_requests_running, totals.num_requests_waiting, totals.kv_cache_usage_perc) == (0, 0, 0)
    assert ends(three) == {"length": 3}
    assert observed(totals.iteration_tokens_total) == (4, 16 + 7 + 4 + 2)
    assert totals.iteration_tokens_total.counts[:4] == [0, 3, 1, 0], "2, 4 and 7 are at most 8; 16 at most 16"
    assert observed(totals.request_prompt_tokens) == (3, 26)
    assert observed(totals.request_generation_tokens) == (3, 6)
    assert observed(totals.request_params_max_tokens) == (3, 6)


def test_every_latency_is_that_of_the_schedule(three):
    totals = three.totals()
    assert observed(totals.step_time_seconds) == (4, 4)
    assert observed(totals.time_to_first_token_seconds) == (3, 2 + 2 + 3)
    assert observed(totals.inter_token_latency_seconds) == (3, 1 + 1 + 1)
    assert observed(totals.request_time_per_output_token_seconds) == (2, 1 + 1)
    assert observed(totals.e2e_request_latency_seconds) == (3, 4 + 2 + 4)
    assert observed(totals.request_queue_time_seconds) == (3, 0 + 1 + 2)
    assert observed(totals.request_prefill_time_seconds) == (3, 2 + 1 + 1)
    assert observed(totals.request_decode_time_seconds) == (3, 2 + 0 + 1)
    assert observed(totals.request_inference_time_seconds) == (3, 4 + 1 + 2)


def test_an_aborted_request_has_tokens_and_no_latency():
    served = Metered(LLM, CONFIG)
    served.add("gone", [97] * 3, max_tokens=9)
    served.add("waits", [98] * 3, max_tokens=9)
    served.step()
    served.step()
    usage = served.metrics.totals().kv_cache_usage_perc
    assert usage == 2 / 256, "a block of 16 tokens each, of 256"
    served.add("never", [99] * 3, max_tokens=9)
    for name in ("gone", "waits", "never"):
        served.abort(name)
    totals = served.metrics.totals()
    assert ends(served.metrics) == {"abort": 3}
    assert not served.metrics._live and not served.metrics._unscheduled, "nothing of it is kept"
    assert (totals.prompt_tokens, totals.generation_tokens) == (6, 4)
    assert observed(totals.time_to_first_token_seconds)[0] == 2
    assert observed(totals.e2e_request_latency_seconds)[0] == 0
    assert (totals.num_requests_running, totals.kv_cache_usage_perc) == (0, 0), "though no step follows"


def test_a_prompt_that_is_computed_again_is_asked_once():
    served = Metered(LLM, CONFIG, num_blocks=4, block_size=4, enable_prefix_caching=False)
    served.add("a", [97] * 4, max_tokens=8)
    served.add("b", [98] * 4, max_tokens=8)
    served.run()
    totals = served.metrics.totals()
    assert totals.num_preemptions > 0
    assert totals.prompt_tokens == 8 < totals.prompt_tokens_computed
    assert totals.generation_tokens == 16
    assert observed(totals.time_to_first_token_seconds) == (2, 1 + 1)
    assert observed(totals.request_queue_time_seconds) == (2, 0), "until the first admission"
    assert ends(served.metrics) == {"length": 2}


def test_cached_tokens_are_hits():
    served = Metered(LLM, CONFIG)
    for name in ("first", "second"):
        served.add(name, [97] * 40, max_tokens=1)
        served.run()
    totals = served.metrics.totals()
    assert (totals.prefix_cache_queries, totals.prefix_cache_hits) == (80, 32), "two full blocks of 16"
    assert (totals.prompt_tokens, totals.prompt_tokens_cached, totals.prompt_tokens_computed) == (80, 32, 48)


def test_drafts_are_counted():
    served = Metered(LLM, CONFIG, proposer=LLM.NgramProposer(num_tokens=2))
    served.add("a", [97, 98, 99] * 5, max_tokens=12)
    served.run()
    num_steps = int(served.clock.now)
    totals, stats = served.metrics.totals(), served.engine.core.spec_stats
    assert totals.spec_decode_num_drafts == stats.num_drafts > 0
    assert totals.spec_decode_num_draft_tokens == stats.num_draft_tokens
    assert totals.spec_decode_num_accepted_tokens == stats.num_accepted_tokens
    assert 1 < num_steps < 12, "a step that accepts drafts brings several tokens"
    assert observed(totals.inter_token_latency_seconds) == (num_steps - 1,) * 2, "1 s before each step"


def test_an_answer_without_a_token_ends_with_its_step(monkeypatch):
    served = Metered(LLM, CONFIG)
    monkeypatch.setattr(served.engine.tokenizer, "eos_token_ids", set(range(EOS + 2)))
    served.add("a", [97] * 3, max_tokens=5, ignore_eos=False)
    served.run()
    totals = served.metrics.totals()
    assert ends(served.metrics) == {"stop": 1}
    assert (totals.prompt_tokens, totals.generation_tokens) == (3, 0)
    assert observed(totals.time_to_first_token_seconds) == (0, 0)
    assert observed(totals.e2e_request_latency_seconds) == (1, 1)
    assert observed(totals.request_prefill_time_seconds) == (1, 1)


def test_a_failed_step_and_a_fresh_cache_on_the_real_thread():
    models, metrics = list[Fragile](), EngineMetrics()

    def fragile(model):
        models.append(Fragile(model))
        return models[0]

    engine = toy_engine(CONFIG, [metrics], fragile)

    async def answer():
        async for _ in engine.generate([97] * 20, SamplingParams(max_tokens=2, ignore_eos=True)):
            pass

    async def scenario():
        await engine.start()
        await answer()
        models[0].error = BrokenError()
        with pytest.raises(BrokenError):
            await answer()
        models[0].error = None
        await answer()
        await engine.stop()

    asyncio.run(scenario())
    totals = metrics.totals()
    assert ends(metrics) == {"length": 2, "error": 1}
    assert (totals.num_requests_running, totals.num_requests_waiting) == (0, 0)
    assert (totals.prefix_cache_queries, totals.prefix_cache_hits) == (40, 0), "never backwards"
    assert observed(totals.e2e_request_latency_seconds)[0] == 2


DISK = "prefix_cache_disk_hits prefix_cache_disk_written_bytes prefix_cache_disk_dropped_blocks".split()
DISK += ["pictures_read", "picture_hits", "tower_milliseconds"]
COUNTS = "num_hit_tokens num_written_bytes num_dropped_blocks num_pictures num_picture_hits tower_s".split()


def test_what_disk_and_tower_have_done_is_counted_over_all_processes():
    rng, metrics, sums = random.Random(0), EngineMetrics(), Counter()
    for _ in range(3):
        metrics.started(FACTS)
        disk = Counter(dict.fromkeys(vars(DiskCounts()), 0))
        for _ in range(9):
            more = {name: rng.choice((0, 1, 70)) for name in disk}
            disk.update(more)
            metrics.stepped(report_of(StepPlan({}), disk=DiskCounts(**disk)))
            sums.update(more | {"tower_s": 1000 * more["tower_s"]})
            totals = vars(metrics.totals())
            assert [totals[name] for name in DISK] == [sums[name] for name in COUNTS]


def test_a_copy_does_not_change(three):
    copy = three.totals()
    copy.request_success["stop"] += 1
    copy.step_time_seconds.observe(1)
    assert ends(three) == {"length": 3}
    assert sum(three.totals().step_time_seconds.counts) == 4


def test_snapshots_are_counted():
    llm = TaskNames(load_solution("ref"))
    metrics, clock = EngineMetrics(), FakeClock()
    model = llm.Qwen(HYBRID, hybrid_weights(HYBRID), llm.ArrayOps())
    run = Stepped(metrics, SchedulerConfig(), model, num_blocks=16, num_states=3, snapshot_every=160)
    log = StatsLog(metrics, clock)
    for text in ("a" * 40, "b" * 40, "b" * 40, "c" * 40):
        run.add("r", list(text.encode()), max_tokens=1)
        run.run()
    totals = metrics.totals()
    assert totals.state_snapshots == 2
    assert totals.state_snapshots_used == 1
    assert totals.state_snapshots_evicted == 1
    clock.now += 1
    line = log.line()
    assert line is not None and line.endswith("State snapshots: 2")


# The page that Prometheus reads, and the line in the log


ROOT = Path(__file__).resolve().parents[4]
DASHBOARD = ROOT / "deploy" / "grafana" / "tiny-llm.json"
# vLLM's names: its dashboards serve this engine too, once the prefix is changed.
VLLM_NAMES = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total
num_preemptions_total prompt_tokens_total prompt_tokens_cached_total generation_tokens_total
request_success_total iteration_tokens_total_bucket time_to_first_token_seconds_bucket
inter_token_latency_seconds_bucket request_time_per_output_token_seconds_bucket
e2e_request_latency_seconds_bucket request_queue_time_seconds_bucket request_inference_time_seconds_bucket
request_prefill_time_seconds_bucket request_decode_time_seconds_bucket request_prompt_tokens_bucket
request_generation_tokens_bucket request_params_max_tokens_bucket spec_decode_num_drafts_total
spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total cache_config_info
""".split()


# vLLM's bounds: a quantile of its dashboards is as exact here.
VLLM_BOUNDS = {
    "time_to_first_token_seconds": (
        *("0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5".split()),
        *("5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0".split()),
    ),
    "inter_token_latency_seconds": (
        *("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75".split()),
        *("1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0".split()),
    ),
    "e2e_request_latency_seconds": (
        *("0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0".split()),
        *("120.0 240.0 480.0 960.0 1920.0 7680.0".split()),
    ),
    "request_prompt_tokens": tuple(f"{digit * 10**power:.1f}" for power in range(6) for digit in (1, 2, 5)),
    "iteration_tokens_total": (
        *("1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0".split()),
        *("2048.0 4096.0 8192.0 16384.0".split()),
    ),
}


@pytest.fixture(scope="module")
def served():
    served = Metered(load_serving("ref"), CONFIG)
    served.add("a", [97] * 20, max_tokens=3)
    return served


def samples(served, model_name="m"):
    found = {}
    for family in text_string_to_metric_families(exposition({model_name: served.metrics}).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_the_names_are_those_of_vllm(served):
    found = samples(served)
    assert [name for name in VLLM_NAMES if f"tiny_llm:{name}" not in found] == []
    ours = [each for name, rows in found.items() if name.startswith("tiny_llm:") for each in rows]
    assert all(labels["model_name"] == "m" for labels, _ in ours)
    reasons = {labels["finished_reason"] for labels, _ in found["tiny_llm:request_success_total"]}
    assert reasons == {"stop", "length", "abort", "error"}, "all there from the start: a rate needs a zero"
    (info,) = found["tiny_llm:cache_config_info"]
    assert info[0]["block_size"] == "16" and info[0]["num_gpu_blocks"] == "256"
    on_linux = sys.platform == "linux"  # other systems do not tell
    assert ("tiny_llm_engine_process_resident_memory_bytes" in found) == on_linux
    described = [name for kind in ("gauges", "counters", "histograms") for name in _TABLE[kind]]
    assert sorted(described) == sorted(each.name for each in fields(Totals))


@pytest.mark.parametrize("name", VLLM_BOUNDS)
def test_the_bounds_are_those_of_vllm_and_smaller_ones(served, name):
    bounds = [labels["le"] for labels, _ in samples(served)[f"tiny_llm:{name}_bucket"]]
    expected = [*VLLM_BOUNDS[name], "+Inf"]
    assert bounds[bounds.index(expected[0]) :] == expected


def test_a_model_may_have_any_name(served):
    name = 'a "b"\\c\nd'
    ((labels, _),) = samples(served, name)["tiny_llm:num_requests_running"]
    assert labels["model_name"] == name


def test_buckets_are_cumulative():
    served = Metered(load_serving("ref"), CONFIG)
    served.add("a", [97] * 20, max_tokens=3)
    served.run()
    rows = samples(served)["tiny_llm:iteration_tokens_total_bucket"]
    assert [(labels["le"], n) for labels, n in rows][:4] == [("1.0", 2), ("8.0", 3), ("16.0", 4), ("32.0", 4)]
    assert (rows[-1][0]["le"], rows[-1][1]) == ("+Inf", 4)


def test_every_query_of_the_dashboard_names_what_there_is(served):
    found, targets = samples(served), dashboard_queries()
    names = {name for query in targets for name in re.findall(r"\b(?:tiny_llm:|process_)\w+", query)}
    assert len(targets) >= 15
    assert sorted(names - set(found)) == []


def dashboard_queries():
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_line_tells_of_the_time_since_the_last():
    served = Metered(load_serving("ref"), CONFIG)
    log = StatsLog(served.metrics, served.clock)
    assert log.line() is None
    served.add("a", [97] * 20, max_tokens=3)
    served.add("b", [98] * 20, max_tokens=1)
    served.add("c", [97] * 20, max_tokens=1)
    served.step()
    served.clock.now = 10
    assert log.line() == (
        "Avg prompt throughput: 1.6 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        "Running: 1 reqs, Waiting: 2 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%"
    )
    served.run()
    served.clock.now = 30
    line = log.line()  # 4 + 20 + 4 of the prompts: the third finds a block of 16 in the cache
    assert line is not None
    assert line.startswith("Avg prompt throughput: 1.4 tokens/s, Avg generation throughput: 0.2 tokens/s, ")
    assert line.endswith(
        "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 40.0%"
    )
    served.clock.now = 40
    assert log.line() is None, "nothing to tell of an idle engine"


def test_lines_are_written_while_there_is_work(served, caplog):
    async def scenario():
        async with stats_logged(served.metrics, interval_s=0.001), asyncio.timeout(30):
            while not caplog.messages:
                await asyncio.sleep(0.001)

    with caplog.at_level(logging.INFO, "tiny_llm.stats"):
        asyncio.run(scenario())
    assert "Waiting: 1 reqs" in caplog.messages[0]
