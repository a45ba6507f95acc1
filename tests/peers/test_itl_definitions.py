"""One stream with one pause, as three clients tell it: ours, vLLM's formula, and a real guidellm.

GUIDELLM names the program: `python -m venv DIR && DIR/bin/pip install guidellm`, then DIR/bin/guidellm.
"""

import asyncio
import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import httpx2
import pytest
from tests.helpers.fake_openai import DONE, text_chunk, usage_chunk
from tests.helpers.processes import free_ports

from tiny_llm_lab.measure.load.client import LoadOptions, run_load, timings
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.runtime.metrics import percentile, pooled_itl, tpot_s

GUIDELLM = os.environ.get("GUIDELLM")
NUM_TOKENS, GAP_S, PAUSE_S, BURST = 40, 0.02, 0.5, 4
# 40 tokens: every 20 ms, one pause of 500 ms, and four times four tokens in one write.
MEAN_S = ((NUM_TOKENS - 1 - 4 * (BURST - 1) - 1) * GAP_S + PAUSE_S) / (NUM_TOKENS - 1)
LATE = 0.25  # of a time: pauses of a loaded machine


def script():
    """What the server sends and when: single tokens, but each fifth write of the first twenty has four."""
    steps = []
    number = writes = 0
    while number < NUM_TOKENS:
        size = min(BURST if writes % 5 == 4 and writes < 20 else 1, NUM_TOKENS - number)
        if number:
            steps.append(PAUSE_S if writes == 12 else GAP_S)
        texts = [f" t{number + each}" for each in range(size)]
        last = number + size == NUM_TOKENS
        steps.append(b"".join(text_chunk(t, "length" if last and t == texts[-1] else None) for t in texts))
        number, writes = number + size, writes + 1
    return [*steps, usage_chunk(8, NUM_TOKENS), DONE]


@contextmanager
def serving(port):
    """A server whose every completion is `script`."""

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (int(x.split(":")[1]) for x in head.splitlines() if x.lower().startswith("content-l")), 0
        )
        await reader.readexactly(length)
        kind = "text/event-stream" if head.startswith("POST") else "application/json"
        models = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())
        for step in script() if head.startswith("POST") else [models]:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            else:
                await asyncio.sleep(step)
        writer.close()
        await writer.wait_closed()

    loop, is_over = asyncio.new_event_loop(), asyncio.Event()

    async def serve():
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            is_ready.set()
            await is_over.wait()

    is_ready = threading.Event()
    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.close()))
    thread.start()
    is_ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()


def ours(url):
    """Gaps of our client, and its TPOT."""
    run = asyncio.run(run_load(url, "m", [LoadRequest("a b", 8, NUM_TOKENS, "x", 0.0)], LoadOptions()))
    [record] = run.records
    assert record.error is None, record.error
    return pooled_itl(timings(run.records)), tpot_s(record.timing) or 0.0


def by_events(url):
    """vLLM's: a time for every event with text, in the order in which the client takes them from a read."""
    times = []
    body = {"model": "m", "prompt": "a b", "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                times.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(times)]


def test_ours_and_vllms_formula_agree_on_pauses_and_differ_on_what_came_together():
    (port,) = free_ports(1)
    with serving(port) as url:
        (gaps, tpot), events = ours(url), by_events(url)
    deliveries = (
        len(script()) // 2 - 1
    )  # each write but the first follows a pause; usage and DONE are two more
    assert len(events) == NUM_TOKENS - 1 and len(gaps) == deliveries
    assert max(gaps) == pytest.approx(PAUSE_S, rel=LATE) and max(events) == pytest.approx(PAUSE_S, rel=LATE)
    assert sum(events) == pytest.approx(sum(gaps), rel=LATE), "the same stream"
    assert min(gaps) > GAP_S / 2, "tokens of one read have no gap between them"
    assert sum(gap < GAP_S / 10 for gap in events) == 4 * (BURST - 1), "each event has a time of its own"
    assert tpot == pytest.approx(MEAN_S, rel=LATE)


@pytest.mark.skipif(GUIDELLM is None, reason="GUIDELLM names no program: see the head of this file")
def test_guidellms_inter_token_latency_is_a_mean_of_a_request(tmp_path):
    (port,), out = free_ports(1), tmp_path / "out.json"
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a b"}) + "\n")
    with serving(port) as url:
        (gaps, tpot), events = ours(url), by_events(url)
        command = [
            *(str(GUIDELLM), "run", "--disable-console"),
            *(
                "--backend",
                f"kind=openai_http,target={url},model=m,request_format=/v1/completions,http2=false",
            ),
            *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=1"),
            *("--data", f"kind=json_file,path={tmp_path / 'prompts.jsonl'}"),
            *("--output", f"kind=json,path={out}"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    itl = metrics["inter_token_latency_ms"]["successful"]
    print(f"{'':<28}{'p50':>8}{'p99':>8}{'max':>8}  ms")
    print(f"{'ours':<28}{_cells(gaps)}")
    print(f"{'a time for each event':<28}{_cells(events)}")
    print(f"{'guidellm':<28}{itl['median']:8.1f}{itl['percentiles']['p99']:8.1f}{itl['max']:8.1f}")
    print(f"{'our TPOT':<28}{tpot * 1e3:8.1f}")
    assert itl["max"] == pytest.approx(1e3 * MEAN_S, rel=LATE), "a mean, in which the pause does not show"
    assert itl["max"] < 1e3 * PAUSE_S / 5 < 1e3 * max(gaps)


def _cells(gaps):
    return "".join(f"{1e3 * percentile(gaps, each):8.1f}" for each in (50, 99, 100))
