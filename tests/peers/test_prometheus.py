"""The dashboard against a real Prometheus, of Debian's package `prometheus`, that scrapes a real server."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.helpers.processes import answers, free_ports, is_healthy, running, tiny_llm, wait_for

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here: apt-get install prometheus")


def test_every_query_of_the_dashboard_has_data(tmp_path):
    server, prometheus = free_ports(2)
    with serving(server, tmp_path), scraping(prometheus, server, tmp_path):
        queries = [
            target["expr"].replace("$__rate_interval", "15s").replace("$model_name", ".*")
            for panel in json.loads((DEPLOY / "grafana" / "tiny-llm.json").read_text("utf-8"))["panels"]
            for target in panel["targets"]
        ]
        seen = {}

        def all_have_data():
            ask_at_once(server)
            for query in queries:
                seen[query] = seen.get(query) or values(prometheus, query)
            return all(seen.values())

        wait_for(all_have_data, "data for every query")
        for query, numbers in seen.items():
            print(f"{numbers[0]:>12.4g}  {query}")
        totals = values(prometheus, "sum(tiny_llm:request_success_total)")
        counted = values(prometheus, "tiny_llm:e2e_request_latency_seconds_count")
        assert totals == counted and totals[0] > 0


def test_promtool_finds_nothing_beyond_the_names_of_vllm(tmp_path):
    (port,) = free_ports(1)
    with serving(port, tmp_path):
        page = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
    run = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    lines = (run.stdout + run.stderr).splitlines()
    allowed = ("metric names should not contain ':'", 'should not have "_total" suffix')  # vLLM has both
    assert [line for line in lines if not line.endswith(allowed)] == []
    checked = subprocess.run(["promtool", "check", "config", str(DEPLOY / "prometheus.yml")])
    assert checked.returncode == 0


@contextmanager
def serving(port, folder):
    command = tiny_llm("serve", "--port", str(port), "--speculate", "ngram")
    with running(command, folder / "server.log"):
        wait_for(lambda: is_healthy(port), "the start of the server")
        yield


@contextmanager
def scraping(port, server, folder):
    config = (DEPLOY / "prometheus.yml").read_text("utf-8")
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s").replace(":8000", f":{server}")
    (folder / "prometheus.yml").write_text(config, "utf-8")
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, folder / "prometheus.log"):
        wait_for(lambda: answers(port, "-/ready"), "the start of Prometheus")
        yield


def ask_at_once(port, num_requests=4):
    def ask(number):
        body = {"prompt": f"one two three {number} " * 8, "max_tokens": 24, "ignore_eos": True}
        httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60).raise_for_status()

    with ThreadPoolExecutor(num_requests) as pool:
        list(pool.map(ask, range(num_requests)))


def values(port, query):
    """What Prometheus has for `query` now."""
    answer = httpx2.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", f"{query}: {answer}"
    return [float(each["value"][1]) for each in answer["data"]["result"] if each["value"][1] != "NaN"]
