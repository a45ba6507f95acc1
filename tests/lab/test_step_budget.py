"""The tokens of a step on Metal: what a calibration of fake times says, where it is kept, and who gets it."""

import asyncio
import importlib.metadata
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.machines import CUDA_80, MAC_16, pretend
from tests.helpers.toy import QWEN3, ByteTokenizer, toy_model, toy_weights

import tiny_llm_ref
from tiny_llm_lab import LLM
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.steps import step_budget as budgets
from tiny_llm_lab.runtime.steps.shapes import work_of
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET, fitting_budget, step_budget
from tiny_llm_lab.serving import building
from tiny_llm_lab.serving.async_engine.model import run_model
from tiny_llm_lab.serving.server.command import add_arguments, model_settings
from tiny_llm_lab.types import Checkpoint, SchedulerConfig, StepSample


def samples(seconds: Callable[[int, int, int], float]) -> list[StepSample]:
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
def test_the_largest_budget_that_fits_100_ms(
    ms: float, per_token_us: float, per_pair_ns: float, budget: int
) -> None:
    def seconds(num_tokens: int, pairs: int, read: int) -> float:
        return ms / 1e3 + per_token_us / 1e6 * num_tokens + per_pair_ns / 1e9 * pairs

    assert fitting_budget(samples(seconds)) == budget


class Timed:
    """A model whose passes take `per_token_s` on a fake clock, and its checkpoint."""

    def __init__(self, per_token_s: float, limit: int = 1024) -> None:
        config = replace(QWEN3, max_position_embeddings=limit)
        self.config, self.ops, self.clock, self.num_passes = config, None, FakeClock(), 0
        self.per_token_s, self.model = per_token_s, toy_model(tiny_llm_ref, config)
        self.checkpoint = Checkpoint(
            "toy", Path("toy"), config, dict(toy_weights(config)), ByteTokenizer(), mx.float32
        )

    def __call__(self, tokens: Any, *args: Any, **kwargs: Any) -> Any:
        self.num_passes += 1
        self.clock.now += self.per_token_s * len(tokens)
        return self.model(tokens, *args, **kwargs)

    def create_paged_kv_cache(self, *shape: int) -> Any:
        return self.model.create_paged_kv_cache(*shape)

    def budget(self) -> tuple[int, bool]:
        """The budget, and whether it was measured now."""
        before = self.num_passes
        model: Any = self
        found = step_budget(load_serving("ref"), model, self.checkpoint, self.clock)
        return found, self.num_passes > before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    pretend(monkeypatch, MAC_16)
    return tmp_path / "steps"


def test_a_calibration_takes_about_a_second_and_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = Timed(1e-6), Timed(0.003)
    assert fast.budget() == (2048, True)
    assert fast.clock.now < 0.02 and fast.num_passes == 1 + 8 * 3
    assert [fast.budget(), slow.budget()] == [(2048, False)] * 2, "the same model on the same device"
    [kept] = folder.iterdir()
    kept.write_text("no number")
    assert [slow.budget(), slow.budget()] == [(128, True), (128, False)]
    assert slow.clock.now < 1.0 + 0.003 * 512
    for name, value in [
        ("mlx.core.device_info", lambda: MAC_16 | {"device_name": "Apple M9"}),
        ("importlib.metadata.version", lambda name: "0.99"),
    ]:
        monkeypatch.setattr(name, value)
        assert [slow.budget(), slow.budget()] == [(128, True), (128, False)]
    assert importlib.metadata.version("mlx") == "0.99"
    other = Timed(1e-6, limit=1100)
    assert other.budget() == (2048, True)
    other.checkpoint = replace(other.checkpoint, dtype=mx.bfloat16)
    assert other.budget() == (2048, True)
    other.checkpoint = replace(other.checkpoint, weights={})
    assert other.budget() == (2048, True)
    assert len([*folder.iterdir()]) == 6


def test_what_cannot_be_kept_or_measured(folder: Path) -> None:
    folder.write_text("a file")
    model = Timed(1e-6)
    assert [model.budget(), model.budget()] == [(2048, True)] * 2
    assert Timed(1e-6, limit=20).budget() == (UNKNOWN_BUDGET, False)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On a Mac of 16 GB 256 tokens fit; the checkpoints that were measured."""
    found: list[str] = []
    monkeypatch.setattr(
        building, "step_budget", lambda llm, model, checkpoint: found.append(checkpoint.name) or 256
    )
    pretend(monkeypatch, MAC_16)
    for name in ("set_wired_limit", "set_cache_limit"):
        monkeypatch.setattr(mx, name, lambda limit: 0)
    return found


def budget_of(**settings: Any) -> int:
    with LLM(**settings) as llm:
        return llm.engine.core.config.max_num_batched_tokens


def test_programs_get_it_where_they_name_no_other(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_servers_get_it_unless_a_flag_says_more(
    flags: str, at_first: int, tokens: int, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    settings = model_settings(parser.parse_args(flags.split()))
    assert settings.engine.config.max_num_batched_tokens == at_first
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)  # there are no kernels for it here

    async def served() -> int:
        running = await run_model(settings)
        await running.engine.stop()
        return running.config.max_num_batched_tokens

    assert asyncio.run(served()) == tokens
    assert len(measured) == ("--max-num-batched-tokens" not in flags)


def test_a_latency_slo_needs_no_budget(measured: list[str]) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    settings = model_settings(parser.parse_args(["--itl-slo-ms", "50"]))
    assert not settings.fits_steps and settings.engine.config.max_num_batched_tokens == 2048
