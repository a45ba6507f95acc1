"""`/metrics` of a running application."""

import logging
from typing import Any, cast

import pytest
from starlette.testclient import TestClient
from tests.helpers.serving import make_engine
from tests.helpers.toy import QWEN3, toy_model

from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.metrics import stats_log
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import OnStep, SamplingParams, SchedulerConfig
from tiny_llm_lab.types.scheduling.serving import Engine


async def start() -> ServedModel:
    llm, metrics, config = load_serving("ref"), EngineMetrics(), SchedulerConfig()

    def make(on_step: OnStep) -> Engine:
        return cast(Engine, make_engine(llm, toy_model(llm), config, on_step=on_step))

    engine = AsyncEngine(make, [metrics])
    await engine.start()
    async for _ in engine.generate([97] * 3, SamplingParams(max_tokens=2, ignore_eos=True)):
        pass
    nothing: Any = None
    return ServedModel(
        names=("toy", "alias"),
        engine=engine,
        tokenizer=nothing,
        model=QWEN3,
        config=config,
        num_blocks=256,
        block_size=16,
        block_bytes=1,
        grammars=nothing,
        metrics=metrics,
    )


def test_the_page_is_plain_text_under_the_first_name() -> None:
    with TestClient(create_app(start), "http://localhost") as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tiny_llm:generation_tokens_total{model_name="toy"} 2.0' in answer.text.splitlines()


@pytest.mark.parametrize("logs_stats", [True, False])
def test_the_log_can_be_turned_off(
    logs_stats: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started, settings = [], ServerSettings(disable_log_stats=not logs_stats)
    monkeypatch.setattr(stats_log.StatsLog, "line", lambda self: started.append(self))
    monkeypatch.setattr(stats_log, "INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO), TestClient(create_app(start, settings), "http://localhost") as client:
        for _ in range(20):
            client.get("/metrics")
    assert bool(started) == logs_stats
