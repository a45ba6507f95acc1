"""The routes of the page and of the metrics on an application around a small model."""

import asyncio
import json
import logging
import random
import re
from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient
from tests.helpers.toy_server import start_toy
from tests.helpers.virtual_loop import run_virtual

from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.live.recorder import LiveView, StepRecorder
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.routes import live, page
from tiny_llm_lab.serving.server.routes import metrics as metrics_route
from tiny_llm_lab.serving.server.routes.live import MAX_PAGES, Pages, PageStream, batches
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import SamplingParams, SchedulerConfig

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=256)


async def start(has_controls=True):
    live = LiveView(has_controls)
    return await start_toy(CONFIG, [live.recorder], live=live)


def data(batch):
    assert batch.startswith(b"data: ") and batch.endswith(b"\n\n")
    return json.loads(batch.removeprefix(b"data: "))


def test_the_switch_keeps_the_budget_for_when_it_is_on_again():
    def ask(**change):
        answer = client.post("/live/config", json=change).json()
        return answer["enable_chunked_prefill"], answer["max_num_batched_tokens"]

    with TestClient(create_app(start), "http://localhost") as client:
        assert ask(max_num_batched_tokens=32) == (True, 32)
        assert ask(enable_chunked_prefill=False) == (False, 256), "a prompt of max_model_len takes one step"
        assert ask(max_num_batched_tokens=48) == (False, 256)
        assert ask(enable_chunked_prefill=True) == (True, 48)


REFUSED = [
    ({"max_num_batched_tokens": 3}, "max_num_seqs"),
    ({"max_num_batched_tokens": 10**9}, "65536"),
    ({"max_num_batched_tokens": True}, "whole number"),
    ({"enable_chunked_prefill": "no"}, "boolean"),
    ({"max_model_len": 10}, "not permitted"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSED)
def test_what_the_engine_cannot_take_is_refused(change, complaint):
    with TestClient(create_app(start), "http://localhost") as client:
        answer = client.post("/live/config", json=change)
        assert answer.status_code == 400
        assert complaint in answer.json()["error"]["message"]
        after = client.post("/live/config", json={}).json()
    assert after == {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}


def test_without_controls_nothing_is_changed():
    with TestClient(create_app(lambda: start(has_controls=False)), "http://localhost") as client:
        answer = client.post("/live/config", json={"max_num_batched_tokens": 32})
    assert answer.status_code == 403 and "--enable-live-controls" in answer.json()["error"]["message"]


def test_events_follow_the_engine_until_it_stops():
    async def scenario():
        served = await start()
        stream = batches(served.live.recorder, {"model": "toy"}, lambda: served.engine.is_ready, 0.001)
        found = data(await anext(stream))
        async for _ in served.engine.generate([97] * 3, SamplingParams(max_tokens=2, ignore_eos=True)):
            pass
        await served.live.controls.apply(served.engine, max_num_batched_tokens=32)
        await served.engine.stop()
        async for batch in stream:
            found += data(batch)
        return found

    found = asyncio.run(asyncio.wait_for(scenario(), 60))
    kinds = ["hello", "config", "added", "step", "sampled", "step", "sampled", "left", "config"]
    assert [event["type"] for event in found] == kinds
    assert found[3]["parts"] == [[1, 3, False]]
    assert found[-1]["max_num_batched_tokens"] == 32


def test_a_page_without_news_gets_comments(monkeypatch):
    async def scenario():
        now = asyncio.get_running_loop().time
        monkeypatch.setattr(live.time, "monotonic", now)
        stream = batches(StepRecorder(), {}, lambda: now() < 20, batch_s=1.0, ping_s=4.5)
        await anext(stream)
        return [(each[:1], now()) async for each in stream]

    assert run_virtual(scenario()) == [(b":", 5.0), (b":", 10.0), (b":", 15.0), (b":", 20.0)]


def test_a_page_that_stalls_is_dropped():
    sent = []
    recorder = StepRecorder()

    async def send(message):
        sent.append(message)
        if len(sent) == 2:
            await asyncio.Event().wait()  # the first batch never leaves

    async def receive():
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario():
        pages = Pages()
        stream = PageStream(batches(recorder, {}, lambda: True, 0.001), pages, stall_s=0.01)
        await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def test_pages_have_a_limit_and_those_that_leave_make_room():
    rng, open_pages, pages = random.Random(0), ExitStack(), Pages(3)
    kept = []
    with open_pages:
        for _ in range(200):
            if kept and rng.random() < 0.4:
                kept.pop(rng.randrange(len(kept))).close()
                continue
            one = open_pages.enter_context(ExitStack())
            if len(kept) < 3:
                one.enter_context(pages.opened())
                kept.append(one)
                continue
            with pytest.raises(ApiError) as refused:
                one.enter_context(pages.opened())
            assert (refused.value.status, refused.value.code) == (503, "too_many_pages")


def test_a_page_too_many_is_told_so(monkeypatch):
    app = create_app(start)
    with TestClient(app, "http://localhost") as client, ExitStack() as others:
        for _ in range(MAX_PAGES):
            others.enter_context(app.state.pages.opened())
        refused = client.get("/live/events")
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert (
            refused.json()["error"]["message"]
            == "32 pages watch this server, and it takes no more: close one"
        )
        others.close()
        monkeypatch.setattr(AsyncEngine, "is_ready", False)  # or it would never end
        for _ in range(MAX_PAGES + 1):
            assert client.get("/live/events").status_code == 200


def test_the_page_is_served_with_its_types_and_a_strict_policy(monkeypatch):
    with TestClient(create_app(start), "http://localhost") as client:
        front = client.get("/")
        files = {path.name: client.get(f"/page/{path.name}") for path in page.FOLDER.iterdir()}
        names = ("nothing.js", "..%2Fapp.py", "", "a" * 300 + ".js", "a%00.js", ".js")
        lost = {client.get(f"/page/{name}").status_code for name in names}
        monkeypatch.setattr(AsyncEngine, "is_ready", False)
        events = client.get("/live/events")
    assert front.text == files["index.html"].text
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for name, answer in files.items():
        kind = types["." + name.rpartition(".")[2]]
        assert answer.status_code == 200 and answer.headers["content-type"].partition(";")[0] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
    assert lost == {404}
    assert events.headers["content-type"].startswith("text/event-stream")
    hello = data(events.content)[0]
    assert (hello["model"], hello["has_controls"], hello["long_prompt_tokens"]) == ("toy", True, 192)
    assert len(hello["greeting"]["questions"]) == 2 and hello["greeting"]["says"]
    read = {name for answer in files.values() for name in re.findall(r"\bhello\.(\w+)", answer.text)}
    assert read <= hello.keys() and "vocab_size" in read


# `/metrics`, and the line in the log


async def toy():
    metrics = EngineMetrics()
    served = await start_toy(SchedulerConfig(), [metrics], metrics=metrics)
    async for _ in served.engine.generate([97] * 3, SamplingParams(max_tokens=2, ignore_eos=True)):
        pass
    return served


def test_the_page_is_plain_text_under_the_first_name():
    with TestClient(create_app(toy), "http://localhost") as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tiny_llm:generation_tokens_total{model_name="toy"} 2.0' in answer.text.splitlines()


@pytest.mark.parametrize("logs_stats", [True, False])
def test_the_log_can_be_turned_off(logs_stats, monkeypatch, caplog):
    started, settings = [], ServerSettings(disable_log_stats=not logs_stats)
    monkeypatch.setattr(metrics_route.StatsLog, "line", lambda self: started.append(self))
    monkeypatch.setattr(metrics_route, "INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO), TestClient(create_app(toy, settings), "http://localhost") as client:
        for _ in range(20):
            client.get("/metrics")
    assert bool(started) == logs_stats
