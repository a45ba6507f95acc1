"""`/metrics` of a running application."""

import logging

import pytest
from starlette.testclient import TestClient
from tests.helpers.toy_server import start_toy

from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.routes import metrics as metrics_route
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import SamplingParams, SchedulerConfig


async def start():
    metrics = EngineMetrics()
    served = await start_toy(SchedulerConfig(), [metrics], metrics=metrics)
    async for _ in served.engine.generate([97] * 3, SamplingParams(max_tokens=2, ignore_eos=True)):
        pass
    return served


def test_the_page_is_plain_text_under_the_first_name():
    with TestClient(create_app(start), "http://localhost") as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tiny_llm:generation_tokens_total{model_name="toy"} 2.0' in answer.text.splitlines()


@pytest.mark.parametrize("logs_stats", [True, False])
def test_the_log_can_be_turned_off(logs_stats, monkeypatch, caplog):
    started, settings = [], ServerSettings(disable_log_stats=not logs_stats)
    monkeypatch.setattr(metrics_route.StatsLog, "line", lambda self: started.append(self))
    monkeypatch.setattr(metrics_route, "INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO), TestClient(create_app(start, settings), "http://localhost") as client:
        for _ in range(20):
            client.get("/metrics")
    assert bool(started) == logs_stats
