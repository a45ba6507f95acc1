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
from tests.helpers.toy import QWEN3, ByteTokenizer, toy_weights
from tests.lab.test_step_time_fit import Watched

from tiny_llm_lab import LLM
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.steps import step_budget as budgets
from tiny_llm_lab.runtime.steps.runner import work_of
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET, fitting_budget, step_budget
from tiny_llm_lab.serving import building
from tiny_llm_lab.serving.async_engine.model import on_thread, run_model
from tiny_llm_lab.serving.server.command import add_arguments, model_settings
from tiny_llm_lab.types import Checkpoint, SchedulerConfig, StepSample


def samples(seconds):
    return [StepSample(*work, seconds(*work)) for work in map(work_of, budgets._STEPS.steps())]


BUDGETS = [
    (1, 10, 0, 2048),
    (1, 48.2, 0, 2048),
    (1, 49, 0, 1024),
    (2, 180, 0, 512),
    (2, 180, 30, 256),  # behind 2,048 tokens a chunk of 512 has 1.2 million pairs
    (2, 700, 0, 128),
    (40, 9000, 0, 128),
]


@pytest.mark.parametrize(("ms", "per_token_us", "per_pair_ns", "budget"), BUDGETS)
def test_the_largest_budget_that_fits_100_ms(ms, per_token_us, per_pair_ns, budget):
    def seconds(num_tokens, pairs, read):
        return ms / 1e3 + per_token_us / 1e6 * num_tokens + per_pair_ns / 1e9 * pairs

    assert fitting_budget(samples(seconds)) == budget


def test_a_faster_kernel_for_large_chunks_counts():
    """From 1,024 tokens on a step takes half; one that took long, such as a first one, counts for nothing."""

    def seconds(num_tokens, pairs, read):
        return 150e-6 * num_tokens * (0.5 if num_tokens >= 1024 else 1)

    assert fitting_budget(samples(seconds)) == 1024
    assert fitting_budget(samples(lambda n, *_: 0.5 if n == 1024 else 90e-6 * n)) == 1024


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
    assert measured_budget(1e-6) == (2048, 1 + 9 * 3)
    assert measured_budget(0.003) == (2048, 0)
    [kept] = folder.iterdir()
    kept.write_text("no number")
    budget, num_passes = measured_budget(0.003)
    assert budget == 128 and 3 < num_passes < 1 + 9 * 3
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


SERVERS = [
    ("", 512, 256),
    ("--max-num-batched-tokens 700", 700, 700),
    ("--max-num-seqs 300", 512, 300),
    ("--chunk-grid 500", 564, 564),
    ("--no-enable-chunked-prefill --max-model-len 900", 900, 900),
]


@pytest.mark.parametrize(("flags", "at_first", "tokens"), SERVERS)
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
