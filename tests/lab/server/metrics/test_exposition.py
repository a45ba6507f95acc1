"""The page that Prometheus reads, and the line in the log."""

import asyncio
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.metered import Metered

from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.server.metrics.exposition import exposition
from tiny_llm_lab.serving.server.routes.metrics import StatsLog, stats_logged
from tiny_llm_lab.types import SchedulerConfig

ROOT = Path(__file__).resolve().parents[4]
DASHBOARD = ROOT / "deploy" / "grafana" / "tiny-llm.json"
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)
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


def test_a_model_may_have_any_name(served):
    name = 'a "b"\\c\nd'
    ((labels, _),) = samples(served, name)["tiny_llm:num_requests_running"]
    assert labels["model_name"] == name


def test_buckets_are_cumulative():
    served = Metered(load_serving("ref"), CONFIG)
    served.add("a", [97] * 20, max_tokens=3)
    served.run()
    rows = samples(served)["tiny_llm:iteration_tokens_total_bucket"]
    assert [(labels["le"], value) for labels, value in rows][:4] == [
        *(("1.0", 2), ("8.0", 3), ("16.0", 4), ("32.0", 4))
    ]
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
