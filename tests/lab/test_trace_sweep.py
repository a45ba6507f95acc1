"""`trace --sweep-thresholds`: exact numbers for each threshold, and the closed form of two prompts."""

import json
import random
from xml.etree import ElementTree

import pytest
from tests.helpers.tracing import traced

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.trace import TraceRequest
from tiny_llm_lab.measure.trace.sweep import _TITLES, SweepRow
from tiny_llm_lab.measure.trace.timeline import Timeline
from tiny_llm_lab.runtime.console.tables import table_lines

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("kernels_on")

SPIKE = ["--request", "decode:0:1:64", "--request", "long:1:256:2", "--budget", "300"]


def test_the_table_of_a_decode_beside_a_long_prompt(capsys, tmp_path):
    file = tmp_path / "sweep.svg"
    thresholds = ["0", "16", "32", "64", "128", "256"]
    assert cli.main(["trace", *SPIKE, "--sweep-thresholds", *thresholds, "--svg", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "321" in line]
    # threshold, costs of the decode: p50 p95 p99 max mean, sum, TTFT median max, stall, TTFT of both
    assert [" ".join(row) for row in rows] == [
        "off 1 1 257 257 5.08 321 1 1 257 1 1",
        "16 1 17 17 17 5.08 321 1 16 17 1 16",
        "32 1 33 33 33 5.08 321 1 8 33 1 8",
        "64 1 65 65 65 5.08 321 1 4 65 1 4",
        "128 1 1 129 129 5.08 321 1 2 129 1 2",
        "256 1 1 257 257 5.08 321 1 1 257 1 1",
    ]
    said = [each.text for each in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    ttft, stall = "1 16 8 4 2 1".split(), "257 17 33 65 129 257".split()
    assert any(said[i : i + 6] == ttft for i in range(len(said)))
    assert any(said[i : i + 6] == stall for i in range(len(said)))
    assert {"off", "longest TTFT, in steps", "worst stall, in tokens"} <= set(said)


@pytest.mark.parametrize(
    ("budget", "threshold", "largest", "ttft"),
    [(1024, 0, 259, [1] * 5), (1024, 32, 162, [8] * 5), (128, 32, 128, [8, 8, 8, 9, 13])],
)
def test_a_storm(budget, threshold, largest, ttft, capsys):
    flags = ["--budget", str(budget), "--sweep-thresholds", str(threshold), "--json"]
    assert cli.main(["trace", "--preset", "storm", *flags]) == 0
    [row] = json.loads(capsys.readouterr().out)["thresholds"]
    assert (row["threshold"], row["tokens_max"], row["tokens_sum"]) == (threshold, largest, 1405)
    assert list(row["ttft_steps"].values()) == [1, 1, *ttft]


def test_a_stall_counts_the_steps_that_leave_a_decode_out_and_not_the_wait_for_a_first_token():
    requests = [TraceRequest("A", 0, 2, 3), TraceRequest("B", 0, 30, 1)]
    steps = [{"B": 9}, {"A": 2, "B": 9}, {"B": 7}, {}, {"A": 1, "B": 5}, {"A": 1}]
    row = SweepRow.of(0, Timeline(requests, steps, 20))
    assert (row.worst_stall, row.ttft_steps) == (7 + 6, {"A": 2, "B": 5})
    assert (row.tokens_max, row.tokens_sum) == (11, 34)
    assert (row.cost_p50, row.cost_p95, row.cost_max, row.cost_mean) == (1, 6, 6, 3.5), "those of A alone"


def test_the_costs_are_those_of_the_first_request_that_decodes(capsys):
    """Their median grows with chunks while the tail falls, and the mean stays."""
    flags = ["--sweep-thresholds", "0", "32", "--json"]
    assert cli.main(["trace", *flags]) == 0
    off, chunked = json.loads(capsys.readouterr().out)["thresholds"]
    assert (off["cost_p50"], off["cost_max"], chunked["cost_p50"], chunked["cost_max"]) == (1, 257, 33, 33)
    assert off["cost_mean"] == chunked["cost_mean"] == 272 / 15
    lone = SweepRow.of(0, Timeline([TraceRequest("A", 0, 2, 1)], [{"A": 2}], 20))
    assert (lone.cost_p50, lone.cost_mean) == (0, 0.0), "nobody decodes"


def test_the_table_fits_80_columns():
    names = [f"request {i}" for i in range(12)]
    row = SweepRow(131072, 8192, 8192, 8192, 8192, 8192.25, 8192, 10**7, dict.fromkeys(names, 1000), 8192)
    lines = table_lines(_TITLES, [row.cells()], 80)
    assert max(map(len, lines)) <= 80 and lines[2].split()[-3:] == ["1000", "1000", "8192"]


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_the_closed_form_of_two_prompts(policy):
    draw = random.Random(7)
    for _ in range(12):
        p1, p2, b = draw.randint(1, 60), draw.randint(1, 60), 2 * draw.randint(2, 20)
        steps = traced([(0, "1", p1, 80), (0, "2", p2, 80)], b, policy=policy)
        requests = [TraceRequest("1", 0, p1, 80), TraceRequest("2", 0, p2, 80)]
        ttft = [Timeline(requests, steps, b).ttft_steps(each) for each in requests]
        n = -(-p1 // b) if policy == "fcfs" else -(-2 * min(p1, p2) // b)
        other = n + -(-(p1 + p2 - n * b) // (b - 1))
        assert ttft == ([n, other] if policy == "fcfs" or p1 <= p2 else [other, n]), (p1, p2, b)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--threshold", "4", "--sweep-thresholds", "8"], "leave out --threshold"),
        (["--sweep-thresholds", *map(str, range(17))], "takes 16 at most: leave some out"),
        (["--sweep-thresholds", "-1"], "must be 0 or more, not -1"),
        (["--sweep-thresholds", "99999"], "long_prefill_token_threshold"),
    ],
)
def test_what_a_sweep_refuses(flags, said, capsys):
    assert cli.main(["trace", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line
