"""`simulate` from its arguments to its last line."""

import json

import pytest

from tiny_llm_lab.cli import dispatch as cli

Capture = pytest.CaptureFixture[str]

SMALL = ["simulate", "--requests", "20", "--lengths", "fixed:300:20", "--rate", "5"]


def test_command_prints_a_row_for_each_budget_and_slo(capsys):
    assert cli.main([*SMALL, "--sweep", "128", "256"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["budget", "128", "256", "slo"]
    assert "estimated, not measured: qwen3-8b at 1500 GB/s" in said.err


def test_command_as_json_is_the_same_every_time(capsys):
    documents = []
    for _ in range(2):
        assert cli.main([*SMALL, "--json", "--budget", "slo", "--noise", "0.1"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["runs"] == documents[1]["runs"]
    assert documents[0]["settings"]["itl_slo_ms"] == 50 and documents[0]["step_cost"]["overhead_s"] == 0.001
    run = documents[0]["runs"][0]
    assert run["budget"] == "slo" and run["num_requests"] == 20 and run["itl"]["max_s"] < 0.05
