"""`trace` from its arguments to its last line, and its picture."""

import io
import json
import random
import sys
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from rich.cells import cell_len

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.trace import TraceRequest, max_trace_len, trace_run
from tiny_llm_lab.measure.trace.command import REQUEST_COLUMNS, print_timeline, request_rows, timeline_lines
from tiny_llm_lab.measure.trace.picture import draw_requests, draw_totals, save_run
from tiny_llm_lab.measure.trace.sweep import _TITLES, SweepRow
from tiny_llm_lab.measure.trace.timeline import Cell, Timeline, parse_request
from tiny_llm_lab.runtime.console.tables import table_lines
from tiny_llm_lab.types import SchedulerConfig, UserError
from tiny_llm_ref.engine.step_costs import decode_step_costs


def traced(arrivals, budget, threshold=0, **changes):
    """A run of (arrival step, name, prompt_len, max_tokens) on the reference's engine."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=min(64, budget),
        max_model_len=max_trace_len(),
        long_prefill_token_threshold=threshold,
        **changes,
    )
    return trace_run([TraceRequest(name, step, *rest) for step, name, *rest in arrivals], config)


def totals(steps):
    return [sum(step.values()) for step in steps]


def steps_to_first_token(steps, name, arrival, prompt_len):
    computed = 0
    for number, step in enumerate(steps[arrival:], 1):
        computed += step.get(name, 0)
        if computed >= prompt_len:
            return number
    raise AssertionError(f"{name} never got a token")


pytestmark = pytest.mark.usefixtures("kernels_on")

A, B = TraceRequest("A", 0, 1, 4), TraceRequest("B & <b>", 1, 20, 2)
STEPS = [{"A": 1}, {"A": 1}, {"A": 1, B.name: 16}, {"A": 1, B.name: 4}, {B.name: 1}]
RUN = Timeline([A, B], STEPS, budget=17)
SVG = "{http://www.w3.org/2000/svg}"


def test_what_a_timeline_knows():
    assert RUN.totals == [1, 1, 17, 5, 1]
    assert RUN.prefill_totals == [1, 0, 16, 4, 0]
    assert list(RUN.cells(B)) == [
        Cell(1, "waiting", 0), Cell(2, "prefill", 16), Cell(3, "prefill", 4), Cell(4, "decode", 1)
    ]  # fmt: skip
    assert (RUN.ttft_steps(A), RUN.ttft_steps(B)) == (1, 3)
    assert (RUN.decode_costs(A), RUN.decode_costs(B)) == ([1, 17, 5], [1])
    assert RUN.shows_budget and not Timeline([A, B], STEPS, budget=100).shows_budget


def test_the_picture_in_the_terminal():
    lines = [line.plain.rstrip() for line in timeline_lines(RUN, "two", 80)]
    assert lines == [
        "two",
        "",
        "step    0",
        "A       ▁111",
        "B & <b>  ·█▂1",
        "budget  17 ┄┄",
        "          █",
        "          █",
        "          █▂",
        "        ▂▂██▂",
        "sum ↓     1",
        "        11751",
        "",
        "▁▄█ prefill, █ = 16   1 decode   · waiting",
        "5 steps · 25 tokens computed · largest step 17 of 17",
        "TTFT in steps · cost = all tokens of a step that returns a token after the first",
    ]


def test_the_picture_where_only_ascii_can_be_printed(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    print_timeline(RUN, "two")
    stdout.flush()
    picture, _, legend = stdout.buffer.getvalue().decode("ascii").partition("\n\n_;#")
    assert "A       _111" in picture and "B & <b>  .#,1" in picture
    assert picture.split()[-10:] == ["17", "--", "#", "#", "#,", ",,##,", "sum", "v", "1", "11751"]
    assert legend.startswith(" prefill, # = 16   1 decode   . waiting\n5 steps . 25 tokens")


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_of_the_requests_keeps_every_number(width):
    lines = table_lines(REQUEST_COLUMNS, request_rows(RUN), width)
    assert max(map(len, lines)) <= width
    said = " ".join(lines).replace(":", "").split()
    assert {"TTFT", "p50", "p99", "max", "17"} <= set(said) and not any("…" in word for word in said)


SPELLINGS = [("--max-num-batched-tokens", "--long-prefill-token-threshold"), ("--budget", "--threshold")]


@pytest.mark.parametrize("flags", SPELLINGS)
def test_the_names_of_vllm_and_the_short_ones_are_the_same_flags(flags, capsys):
    assert cli.main(["trace", "--request", "A:0:20:1", flags[0], "16", flags[1], "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [{"A": 8}, {"A": 8}, {"A": 4}]


def test_a_long_run_is_drawn_in_bands_that_fit():
    long = Timeline([TraceRequest("x" * 40, 0, 1, 95)], [{"x" * 40: 1}] * 95, budget=512)
    lines = [line.plain for line in timeline_lines(long, "long", 60)]
    assert max(map(cell_len, lines[:-3])) <= 60
    heads = [line.split() for line in lines if line.startswith("step ")]
    assert heads == [["step", "0", "10", "20", "30"], ["step", "40", "50", "60", "70"], ["step", "80", "90"]]
    assert "budget 512 is above the picture" in lines[-3]


def test_the_picture_is_to_scale():
    rows, totals = Figure().subplots(2, 1)
    draw_requests(rows, RUN)
    draw_totals(totals, RUN)
    assert [label.get_text() for label in rows.get_yticklabels()] == ["A", "B & <b>"]
    decode, prefill = totals.containers
    assert [bar.get_height() for bar in decode] == [0, 1, 1, 1, 1]
    assert [(bar.get_y(), bar.get_height()) for bar in prefill] == [(0, 1), (1, 0), (1, 16), (1, 4), (1, 0)]
    assert [list(line.get_ydata()) for line in totals.lines] == [[17, 17]], "the budget"
    assert [text.get_text() for text in totals.texts] == ["1", "1", "17", "5", "1"]
    # The second request: its chunks of 16 and 4 tokens, and that it waited in step 1.
    floors = [bar.get_height() for bars in rows.containers for bar in bars if bar.get_y() == 0]
    assert floors == pytest.approx([0.12, 0.8, 0.2])
    assert [list(line.get_xdata()) for line in rows.lines] == [[], [1]]


def test_the_svg_has_words(tmp_path):
    save_run(RUN, "a < b & c", tmp_path / "x")
    said = {text.text for text in ElementTree.parse(tmp_path / "x").iter(f"{SVG}text")}
    assert {"a < b & c", "step", "tokens in the step", "budget 17", "decode", "A", "B & <b>"} <= said
    first = (tmp_path / "x").read_bytes()
    save_run(RUN, "a < b & c", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == first


def test_command_prints_the_steps_as_json_and_writes_the_picture(capsys, tmp_path):
    file = tmp_path / "run.svg"
    asked = ["--request", "A:0:1:4", "--request", "B:1:20:2", "--threshold", "8", "--budget", "16"]
    assert cli.main(["trace", *asked, "--json", "--svg", str(file)]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1])
    assert document["steps"] == [{"A": 1}, {"A": 1, "B": 8}, {"A": 1, "B": 8}, {"A": 1, "B": 4}, {"B": 1}]
    assert document["totals"] == [1, 9, 9, 5, 1]
    assert [request["ttft_steps"] for request in document["requests"]] == [1, 3]
    assert document["requests"][0]["decode_step_costs"] == [9, 9, 5]
    assert document["settings"]["long_prefill_token_threshold"] == 8
    ElementTree.parse(file)
    assert f"wrote {file}" in said.err


@pytest.mark.parametrize(("preset", "largest"), [("spike", 257), ("two-prompts", 48), ("storm", 259)])
def test_presets_are_drawn(preset, largest, capsys):
    assert cli.main(["trace", "--preset", preset]) == 0
    said = capsys.readouterr().out
    assert f"largest step {largest} of" in said and "cost p50" in said


def test_a_request_may_have_a_priority():
    assert parse_request("chat:3:10:5:-1") == TraceRequest("chat", 3, 10, 5, priority=-1)


def test_a_picture_that_cannot_be_written_is_one_line(capsys):
    assert cli.main(["trace", "--svg", "no-such-folder/x.svg"]) == 2
    assert "choose another file" in capsys.readouterr().err.splitlines()[-1]


# The engine run for its schedule, on a model: what tests of week 3 work out for the scheduler alone


# What steps cost a decode, and storms, are in tests/week_3/test_day_4_step_costs.py.
def test_the_engine_computes_what_the_scheduler_alone_plans():
    """A decode that wants 16 tokens, and a prompt of 256 that arrives one step later and wants two."""
    arrivals = [(0, "reader", 1, 16), (1, "long", 256, 2)]
    for threshold in (0, 16, 32):
        trace = traced(arrivals, 272, threshold)
        costs = [sum(step.values()) for step in trace if "reader" in step][1:]
        assert costs == decode_step_costs(threshold)


def test_the_longest_prompt_of_the_default_model():
    """It fills all positions, so that its answer has one token; the decode outlives it."""
    trace = traced([(0, "decode", 1, 130), (1, "long", 4096, 1)], 512, threshold=32)
    assert steps_to_first_token(trace, "long", 1, 4096) == 128
    assert max(totals(trace)) == 33 and sum(totals(trace)) == 4096 + 130


def test_priority_goes_first_and_an_idle_engine_waits_for_the_next():
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, policy="priority")
    requests = [TraceRequest("late", 2, 8, 1, priority=1), TraceRequest("urgent", 2, 8, 1)]
    assert trace_run(requests, config) == [{}, {}, {"urgent": 8}, {"late": 8}]
    with pytest.raises(UserError, match="0 or more"):
        traced([(-1, "a", 1, 1)], 8)


# `trace --sweep-thresholds`: exact numbers for each threshold, and the closed form of two prompts


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


STORMS = [(1024, 0, 259, [1] * 5), (1024, 32, 162, [8] * 5), (128, 32, 128, [8, 8, 8, 9, 13])]


@pytest.mark.parametrize(("budget", "threshold", "largest", "ttft"), STORMS)
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


def test_the_worst_stall_reads_each_request_twice(monkeypatch):
    """Not once more for each of its steps."""
    read = Mock(side_effect=RUN.cells)
    monkeypatch.setattr(Timeline, "cells", read)
    assert RUN.worst_stall() == 17 and read.call_count == 2 * len(RUN.requests)


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


def test_prompts_that_share_a_beginning_hit_the_prefix_cache(capsys):
    requests = ("--request", "A:0:40:2", "--request", "B:3:40:2", "--request", "C:3:40:2", "--budget", "64")
    assert cli.main(["trace", *requests, "--shared-prefix", "37", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    # Two whole blocks of 16 tokens are found once A has computed them.
    assert run["steps"] == [{"A": 40}, {"A": 1}, {}, {"B": 8, "C": 8}, {"B": 1, "C": 1}]
    assert [each["ttft_steps"] for each in run["requests"]] == [1, 1, 1]
    assert cli.main(["trace", *requests, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][3] == {"B": 40, "C": 24}
