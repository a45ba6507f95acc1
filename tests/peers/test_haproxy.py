"""deploy/haproxy.cfg in front of two servers; skipped without HAProxy (apt install haproxy)."""

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.helpers.processes import ask_while, free_ports, is_healthy, running, tiny_llm, wait_for

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")


@dataclass(frozen=True)
class Balanced:
    """HAProxy's port, and the two servers behind it."""

    port: int
    servers: list["subprocess.Popen[bytes]"]


@pytest.fixture
def balanced(tmp_path):
    port, *ports = free_ports(3)
    text = CONFIG.read_text()
    for old, new in zip((8080, 8001, 8002), (port, *ports), strict=True):
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    config = tmp_path / "haproxy.cfg"
    config.write_text(text)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running(tiny_llm("serve", "--threads", "1", "--port", str(each)), tmp_path / f"{each}.log")
            )
            for each in ports
        ]
        for each in ports:
            wait_for(lambda each=each: is_healthy(each), "the server's start")
        stack.enter_context(running(["haproxy", "-f", str(config)], tmp_path / "haproxy.log"))
        wait_for(lambda: is_healthy(port), "HAProxy's start")
        yield Balanced(port, servers)


def test_the_file_is_valid():
    subprocess.run(["haproxy", "-c", "-f", str(CONFIG)], check=True)


def test_a_killed_server_loses_no_request_that_was_not_answered_yet(balanced):
    outcomes = ask_while(balanced.port, 90, lambda: os.kill(balanced.servers[0].pid, signal.SIGKILL))
    assert outcomes == {"200": 90}


def test_a_drained_server_finishes_its_streams(balanced):
    outcomes = ask_while(balanced.port, 90, balanced.servers[0].terminate, stream=True)
    assert outcomes == {"200": 90}
    assert balanced.servers[0].wait(60) == 0


def test_sessions_stay_where_they_are_and_streams_are_not_gathered(balanced):
    body = {"model": "default", "prompt": "Hello", "max_tokens": 40, "ignore_eos": True, "stream": True}
    with httpx2.Client(base_url=f"http://127.0.0.1:{balanced.port}", timeout=120) as client:
        places = [
            {
                client.get("/v1/models", headers={"x-session-id": f"session {number}"}).headers["x-served-by"]
                for _ in range(4)
            }
            for number in range(12)
        ]
        assert all(len(each) == 1 for each in places)
        assert set.union(*places) == {"a", "b"}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert len(list(answer.iter_raw())) >= 5
