"""`cluster` and `batch --ray` on a real Ray; skipped where it is not installed (the optional group ray)."""

import json
import os
import signal
import subprocess

import httpx2
import pytest
from tests.helpers.processes import ask_while, free_ports, is_healthy, running, tiny_llm, wait_for

pytest.importorskip("ray", reason="Ray is not installed")


def replica_pids():
    found = subprocess.run(
        ["pgrep", "-f", "^ray::ServeReplica:tiny-llm:Replica"], capture_output=True, text=True
    )
    return sorted(map(int, found.stdout.split()))


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    port = free_ports(1)[0]
    command = tiny_llm("cluster", "--num-replicas", "2", "--threads", "1", "--port", str(port))
    with running(command, tmp_path_factory.mktemp("cluster") / "log"):
        wait_for(lambda: is_healthy(port) and len(replica_pids()) == 2, "the cluster's start")
        yield port


def test_a_killed_replica_loses_no_request_that_was_not_answered_yet(port):
    first = replica_pids()[0]
    assert ask_while(port, 90, lambda: os.kill(first, signal.SIGKILL)) == {"200": 90}
    wait_for(lambda: first not in replica_pids() and len(replica_pids()) == 2, "a new replica")


def test_an_update_loses_no_stream(port):
    before = replica_pids()
    flags = ["--address", "auto", "--num-replicas", "2", "--threads", "1", "--port", str(port)]
    command = tiny_llm("cluster", *flags, "--max-num-batched-tokens", "1024")
    updates = []
    assert ask_while(port, 300, lambda: updates.append(subprocess.Popen(command)), stream=True) == {
        "200": 300
    }
    assert updates[0].wait(240) == 0
    assert not set(before) & set(replica_pids())


def test_streams_come_in_pieces(port):
    body = {"model": "default", "prompt": "Hello", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=120) as answer:
        assert len(list(answer.iter_raw())) >= 5


def test_a_batch_on_ray_answers_each_line_once(tmp_path):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    body = {"model": "default", "prompt": "Hello", "max_tokens": 4}
    lines = [
        {"custom_id": f"line {number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(40)
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    flags = [
        "--input",
        str(source),
        "--output",
        str(target),
        "--threads",
        "1",
        "--ray",
        "--num-replicas",
        "1",
    ]
    with running(tiny_llm("batch", *flags), tmp_path / "log") as process:
        assert process.wait(240) == 0
    found = [json.loads(each) for each in target.read_text().splitlines()]
    assert sorted(each["custom_id"] for each in found) == sorted(each["custom_id"] for each in lines)
    assert {each["response"]["status_code"] for each in found} == {200}
