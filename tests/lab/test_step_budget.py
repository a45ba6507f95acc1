"""The tokens of a step on Metal: what a calibration of fake times says, where it is kept, and who gets it."""

import asyncio
import importlib.metadata
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.machines import CUDA_80, MAC_16, pretend
from tests.helpers.paging import Requests
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.some_gpu import attended
from tests.helpers.toy import QWEN3, ByteTokenizer, toy_weights
from tests.lab.test_step_time_fit import Watched

from tiny_llm_lab import LLM
from tiny_llm_lab.runtime.metrics import (
    Slo,
    Spread,
    decode_rate,
    e2e_s,
    percentile,
    spread,
    summarize,
    tpot_s,
)
from tiny_llm_lab.runtime.native.device.decode_kernel import always
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.steps import step_budget as budgets
from tiny_llm_lab.runtime.steps.runner import work_of
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET, fitting_budget, step_budget
from tiny_llm_lab.serving import building
from tiny_llm_lab.serving.async_engine.model import on_thread, run_model
from tiny_llm_lab.serving.server.command import add_arguments, model_settings
from tiny_llm_lab.types import Checkpoint, Completion, SchedulerConfig, StepSample, Timing


def samples(seconds):
    return [StepSample(*work, seconds(*work)) for work in map(work_of, budgets._STEPS.steps())]


@pytest.mark.parametrize(
    ("ms", "per_token_us", "per_pair_ns", "budget"),
    [
        (1, 10, 0, 2048),
        (1, 48.2, 0, 2048),
        (1, 49, 0, 1024),
        (2, 180, 0, 512),
        (2, 180, 30, 256),  # behind 2,048 tokens a chunk of 512 has 1.2 million pairs
        (2, 700, 0, 128),
        (40, 9000, 0, 128),
    ],
)
def test_the_largest_budget_that_fits_100_ms(ms, per_token_us, per_pair_ns, budget):
    def seconds(num_tokens, pairs, read):
        return ms / 1e3 + per_token_us / 1e6 * num_tokens + per_pair_ns / 1e9 * pairs

    assert fitting_budget(samples(seconds)) == budget


CHECKPOINT = Checkpoint("toy", Path("toy"), QWEN3, dict(toy_weights(QWEN3)), ByteTokenizer(), mx.float32)


def measured_budget(per_token_s, checkpoint=CHECKPOINT, limit=1024):
    """The budget of a model whose passes take so long, and the passes that were timed for it."""
    model = Watched(FakeClock(), per_token_s, limit)
    found = step_budget(load_serving("ref"), model, checkpoint, model.clock)
    assert model.clock.now < 1.0 + 512 * per_token_s, "about a second"
    return found, len(model.passes)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    pretend(monkeypatch, MAC_16)
    return tmp_path / "steps"


def test_a_budget_is_kept_for_a_device_a_version_and_a_model(folder, monkeypatch):
    assert measured_budget(1e-6) == (2048, 1 + 8 * 3)
    assert measured_budget(0.003) == (2048, 0)
    [kept] = folder.iterdir()
    kept.write_text("no number")
    budget, num_passes = measured_budget(0.003)
    assert budget == 128 and 3 < num_passes < 1 + 8 * 3
    assert measured_budget(1e-6) == (128, 0)
    monkeypatch.setattr(mx, "device_info", lambda: MAC_16 | {"device_name": "Apple M9"})
    assert measured_budget(0.003)[1] > 0
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99")
    assert measured_budget(0.003)[1] > 0
    changed = [
        replace(CHECKPOINT, config=replace(QWEN3, num_hidden_layers=9)),
        replace(CHECKPOINT, dtype=mx.bfloat16),
        replace(CHECKPOINT, weights={}),
    ]
    assert all(measured_budget(0.003, each)[1] > 0 for each in changed)
    assert len([*folder.iterdir()]) == 6


def test_what_cannot_be_kept_or_measured(folder):
    folder.write_text("a file")
    assert [measured_budget(0.003)[1] > 0 for _ in range(2)] == [True] * 2
    assert measured_budget(1e-6, limit=20) == (UNKNOWN_BUDGET, 0)


@pytest.fixture
def measured(monkeypatch):
    """On a Mac of 16 GB 256 tokens fit; the checkpoints that were measured."""
    found = []
    monkeypatch.setattr(
        building, "step_budget", lambda llm, model, checkpoint: found.append(checkpoint.name) or 256
    )
    pretend(monkeypatch, MAC_16)
    for name in ("set_wired_limit", "set_cache_limit"):
        monkeypatch.setattr(mx, name, lambda limit: 0)
    return found


def budget_of(**settings):
    with LLM(**settings) as llm:
        return llm.engine.core.config.max_num_batched_tokens


def test_programs_get_it_where_they_name_no_other(measured, monkeypatch):
    assert (budget_of(), measured) == (256, ["default"])
    assert budget_of(config=SchedulerConfig(max_num_batched_tokens=700)) == 700
    assert budget_of(config=SchedulerConfig()) == 2048
    assert measured == ["default"]
    pretend(monkeypatch, CUDA_80)
    assert (budget_of(), measured) == (2048, ["default"])


@pytest.mark.parametrize(
    ("flags", "at_first", "tokens"),
    [
        ("", 512, 256),
        ("--max-num-batched-tokens 700", 700, 700),
        ("--max-num-seqs 300", 512, 300),
        ("--chunk-grid 500", 564, 564),
        ("--no-enable-chunked-prefill --max-model-len 900", 900, 900),
    ],
)
def test_servers_get_it_unless_a_flag_says_more(flags, at_first, tokens, measured, monkeypatch):
    parser = ArgumentParser()
    add_arguments(parser)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    settings = model_settings(parser.parse_args(flags.split()))
    assert settings.engine.config.max_num_batched_tokens == at_first
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)  # there are no kernels for it here

    async def served():
        running = await run_model(on_thread(settings))
        await running.engine.stop()
        return running.facts.config.max_num_batched_tokens

    assert asyncio.run(served()) == tokens
    assert len(measured) == (tokens != 700)


# Which of a step's rows go to a kernel for decodes, where one is used whatever their number


def recording(gpu):
    """Operators with a kernel, and the rows of each call."""
    calls, kernel = list[int](), gpu.kernel()

    def call(q, *rest):
        calls.append(len(q))
        return kernel(q, *rest)

    return MlxOps(widens=True, kernel=always(call)), calls


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_only_single_rows_go_to_the_kernel(gpu, llm, dtype):
    step = Requests(llm, [40, 7, 33, 50, 9], [1, 1, 5, 1, 3], 8, D=64, dtype=dtype)
    ops, calls = recording(gpu)
    got = attended(ops, step)
    assert calls == [2, 1], "two decodes, a chunk, a decode, a chunk"
    want = attended(MlxOps(widens=True), step)
    assert mx.allclose(got.astype(mx.float32), want.astype(mx.float32), atol=0.02, rtol=0.02)


def test_what_was_not_tested_is_gathered(gpu, llm):
    ops, calls = recording(gpu)
    attended(ops, Requests(llm, [9, 5], [1, 1], 8, D=24))
    step = Requests(llm, [9, 5], [1, 1], 8, D=64)
    step.new_q = step.new_q.astype(mx.bfloat16)
    attended(ops, step)
    step = Requests(llm, [9, 5], [1, 1], 8, D=64)
    whole = step.keys.shape[:3]
    step.keys, step.values = (mx.ones(step.keys.shape, mx.int8) for _ in range(2))
    ops.paged_attention(
        *(step.new_q, step.keys, step.values, [0, 1, 2], [9, 5], step.layout.block_tables, 0.125),
        kv_scales=(mx.ones(whole), mx.ones(whole)),
    )
    assert calls == []


def test_the_engine_answers_alike_with_and_without_the_kernel(gpu, llm):
    config = replace(QWEN3, head_dim=64)
    ops, calls = recording(gpu)
    plain, fast = (llm.Qwen(config, toy_weights(config), each) for each in (MlxOps(True), ops))
    answers = [serve(make_engine(llm, model), mixed_prompts()) for model in (plain, fast)]
    assert {i: done.token_ids for i, done in answers[1].items()} == {
        i: done.token_ids for i, done in answers[0].items()
    }
    assert len(set(calls)) > 1, "never several decodes at once: this test shows too little"


# Metrics on vectors whose answers were worked out by hand


def completion(idx, timing, error=None):
    reason = "error" if error else "length"
    return Completion(idx, 5, tuple(range(len(timing.token_s))), "text", reason, timing, error)


@pytest.mark.parametrize(
    ("count", "percent", "rank"),
    [(1, 50, 1), (2, 50, 1), (3, 50, 2), (4, 50, 2), (15, 99, 15), (99, 99, 99), (100, 99, 99),
     (101, 99, 100), (200, 99, 198), (100, 100, 100), (10, 90, 9), (11, 90, 10)],
)  # fmt: skip
def test_percentile_is_the_value_of_the_nearest_rank(count, percent, rank):
    values = list(range(count, 0, -1))
    assert percentile(values, percent) == rank


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_percentile_of_nothing_is_an_error(values, percent):
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_one_stall_shows_in_p99_and_max_but_not_in_the_median():
    gaps = [0.01] * 14 + [1.0]
    assert spread(gaps) == Spread(count=15, p50_s=0.01, p90_s=0.01, p99_s=1.0, max_s=1.0)
    assert spread([]) is spread([None]) is None
    assert spread([None, 2.0]) == spread([2.0])


def test_ttft_runs_from_arrival_and_tpot_leaves_it_out():
    timing = Timing(arrival_s=10.0, token_s=(14.0, 15.0, 19.0))
    assert timing.ttft_s == 4.0
    assert e2e_s(timing) == 9.0
    assert tpot_s(timing) == (9.0 - 4.0) / 2
    assert decode_rate(timing) == 1 / 2.5


def test_too_few_tokens_have_no_rate():
    assert tpot_s(Timing(0.0, (1.0,))) is None
    assert tpot_s(Timing(0.0)) is None
    assert e2e_s(Timing(0.0)) is None
    assert decode_rate(Timing(0.0, (1.0, 1.0))) is None


def test_a_failed_request_counts_as_failed_and_nowhere_else():
    good = completion(0, Timing(0.0, (1.0, 2.0, 4.0)))
    bad = completion(1, Timing(0.0), error="the prompt is empty")
    summary = summarize([good, bad], total_s=4.0)
    assert (summary.num_requests, summary.num_failed) == (2, 1)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (5, 3)
    assert summary.output_tokens_per_s == 0.75
    assert summary.ttft_median_s == 1.0
    assert summary.tpot_median_s == 1.5
    assert summary.itl == Spread(2, 1.0, 2.0, 2.0, 2.0)


def test_a_run_without_tokens_has_no_latencies():
    summary = summarize([completion(0, Timing(0.0), error="no")], total_s=0.0)
    assert summary.itl is None and summary.ttft_median_s is None and summary.output_tokens_per_s is None


@pytest.mark.parametrize(
    ("num_gaps", "num_late", "want"),
    [(99, 0, True), (99, 1, False), (100, 1, True), (201, 2, True), (201, 3, False)],
)
def test_one_gap_in_a_hundred_may_be_late(num_gaps, num_late, want):
    times = [1.0]
    for gap in [0.5] * num_late + [0.125] * (num_gaps - num_late):
        times.append(times[-1] + gap)
    assert Slo(itl_s=0.125, ttft_s=1.0).holds(Timing(0.0, tuple(times))) == want
    assert not Slo(itl_s=0.125, ttft_s=0.9).holds(Timing(0.0, tuple(times)))
