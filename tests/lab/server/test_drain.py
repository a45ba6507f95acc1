"""From the start of a server to its end: the line it says, and the signals that stop it."""

import asyncio
import os
import signal

import httpx2
import pytest
from tests.helpers.fake_engine import FakeEngine, raw_post, read_until, start_fake, wait_until
from tests.helpers.until_signal import serve_and

from tiny_llm_lab.serving.server.run_server import address, startup_line
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import SchedulerConfig


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_and_new_ones_are_refused(caplog, number):
    engine = FakeEngine(by_hand=True)

    def client(port):
        with raw_post(port, {"prompt": "x", "max_tokens": 3, "stream": True}) as running:
            engine.permit()
            read_until(running, b"data:")
            os.kill(os.getpid(), number)
            wait_until(lambda: "stopping: 1 request" in caplog.text)
            health = httpx2.get(f"http://127.0.0.1:{port}/health")
            refused = httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x"})
            assert (health.status_code, refused.status_code) == (503, 503)
            engine.permit(2)
            assert b'"finish_reason": "length"' in read_until(running, b"[DONE]")

    serve_and(client, engine, 60, caplog)
    assert engine.steps == 3
    assert caplog.messages[-1] == "stopped"


def test_what_takes_longer_is_told_so(caplog):
    engine = FakeEngine(by_hand=True)

    def client(port):
        with raw_post(port, {"prompt": "x", "stream": True}) as running:
            wait_until(lambda: engine.requests)
            os.kill(os.getpid(), signal.SIGTERM)
            assert b'"code":"unavailable"' in read_until(running, b"0\r\n\r\n")

    serve_and(client, engine, 0.01, caplog)
    assert "1 request did not finish in time" in caplog.text


def test_a_second_signal_ends_the_process_at_once(caplog, monkeypatch):
    engine, codes = FakeEngine(by_hand=True), []
    monkeypatch.setattr(os, "_exit", codes.append)

    def client(port):
        with raw_post(port, {"prompt": "x", "max_tokens": 1, "stream": True}) as running:
            wait_until(lambda: engine.requests)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                wait_until(lambda: "stopping" in caplog.text)
            wait_until(lambda: codes)
            engine.permit()
            read_until(running, b"[DONE]")

    serve_and(client, engine, 60, caplog)
    assert codes == [128 + signal.SIGTERM]


def test_the_line_at_the_start():
    async def line(settings, num_ranks=1):
        engine = FakeEngine(SchedulerConfig(max_num_batched_tokens=512))
        served = await start_fake(engine, num_ranks=num_ranks)
        await served.engine.stop()
        return startup_line(served, address(settings, 8000))

    text = asyncio.run(line(ServerSettings()))
    assert "tiny-llm serves fake, other on http://127.0.0.1:8000 (this machine only)" in text
    assert "chunked prefill is on, 512 tokens a step · 1,024 KV blocks of 16 tokens (1.0 MiB)" in text
    assert "64 requests at a time" in text and "processes" not in text
    assert text != (ranks := asyncio.run(line(ServerSettings(), 2))) and ranks.endswith(" · 2 processes")
    assert "other machines too, without a key" in asyncio.run(line(ServerSettings("0.0.0.0")))
    assert "https://[::1]:8000 (this" in asyncio.run(line(ServerSettings("::1", ssl_certfile="x")))
    assert "http://[::1]:8000 (this machine only)" in asyncio.run(line(ServerSettings("::1")))
