"""What a load run comes to, on numbers worked by hand."""

import json
import math

import pytest

from tiny_llm_lab.measure.load.client import LoadRun, RequestRecord, Usage
from tiny_llm_lab.measure.load.results.result import METRICS, Goodput, details, summarize
from tiny_llm_lab.measure.load.results.table import draw, note_lines, print_kinds, result_lines
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.types import Timing, UserError


def record(arrival_s, send_s, *token_s, **more):
    request = LoadRequest("p", 10, max(1, len(token_s)), more.pop("kind", ""), arrival_s)
    end_s = token_s[-1] if token_s else send_s
    usage = Usage(more.pop("prompt_tokens", 10), len(token_s))
    return RequestRecord(request, send_s, end_s, tuple(token_s), "text", "length", usage, "usage", **more)


# TTFT 1, 2 s from sending and 1, 3 s from arrival; gaps 1, 3 and 1 s; TPOT 2 and 1 s; E2EL 5 and 3 s.
RUN = LoadRun(
    [
        record(0.0, 0.0, 1.0, 2.0, 5.0, kind="long"),
        record(1.0, 2.0, 4.0, 5.0, kind="short"),
        record(2.0, 2.0, error="HTTP 500: no"),
    ]
)


def test_counts_and_rates():
    result = summarize(RUN, [99])
    assert (result["completed"], result["failed"], result["duration"]) == (2, 1, 5.0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (20, 5)
    assert (result["request_throughput"], result["output_throughput"]) == (0.4, 1.0)
    assert result["total_token_throughput"] == 5.0 and result["request_goodput"] is None
    # Two tokens arrive in second 5. What ends when another begins was not there with it.
    assert result["max_output_tokens_per_s"] == 2 and result["max_concurrent_requests"] == 2


def test_latencies_count_from_sending():
    result = summarize(RUN, [50, 99])
    assert result["from_arrival"] is None
    assert {key: result[f"{key}_ttft_ms"] for key in ("mean", "median", "std", "p50", "p99", "max")} == {
        "mean": 1500,
        "median": 1500,
        "std": 500,
        "p50": 1000,
        "p99": 2000,
        "max": 2000,
    }
    # Every gap counts once: not a mean of the requests' means.
    assert result["mean_itl_ms"] == pytest.approx(5000 / 3) and result["median_itl_ms"] == 1000
    assert (result["p99_itl_ms"], result["mean_tpot_ms"], result["max_tpot_ms"]) == (3000, 1500, 2000)
    assert (result["mean_e2el_ms"], result["p99_e2el_ms"]) == (4000, 5000)


def test_an_open_loop_has_latencies_from_the_scheduled_arrival_too():
    result = summarize(RUN, [99], is_open_loop=True)
    assert result["mean_ttft_ms"] == 1500 and result["from_arrival"]["mean_ttft_ms"] == 2000
    assert (
        result["from_arrival"]["p99_ttft_ms"] == 3000
        and result["from_arrival"]["mean_itl_ms"] == (result["mean_itl_ms"])
    )
    assert result["max_send_delay_ms"] == 1000


GOODPUTS = [
    (["ttft:1000"], 1),
    (["ttft:2500"], 1),  # 2 from sending
    (["ttft:3000"], 2),
    (["tpot:1500"], 1),
    (["e2el:4000"], 1),
    (["itl:2999"], 1),
    (["ttft:1000", "itl:2999"], 0),
]


@pytest.mark.parametrize(("targets", "num_good"), GOODPUTS)
def test_goodput_needs_every_target_from_the_arrival(targets, num_good):
    result = summarize(RUN, [99], Goodput.parse(targets), is_open_loop=True)
    assert result["request_goodput"] == num_good / 5


def test_goodput_allows_one_late_gap_in_a_hundred():
    times = [float(number) for number in range(101)] + [110.0]  # 100 gaps of 1 s and one of 10 s
    assert Goodput.parse(["itl:1000"]).holds(Timing(0.0, tuple(times)))
    assert not Goodput.parse(["itl:1000"]).holds(Timing(0.0, (*times, 120.0)))
    assert not Goodput.parse(["itl:1000"]).holds(Timing(0.0))


@pytest.mark.parametrize("text", ["ttft", "ttft:fast", "ttft:0", "wait:5", "ttft:nan", "ttft:-1"])
def test_a_bad_target_is_named(text):
    with pytest.raises(UserError, match="--goodput"):
        Goodput.parse([text])


def test_a_run_without_an_answer_has_no_latencies():
    result = summarize(LoadRun([record(0.0, 0.0, error="no")]), [99], Goodput(ttft=1.0))
    assert result["mean_ttft_ms"] is None and result["request_goodput"] == 0.0
    assert "Mean TTFT (ms):                          -" in list(result_lines(result, METRICS, [99]))
    assert summarize(LoadRun([]), [99])["duration"] == 0.0


def test_the_keys_are_those_of_vllm():
    detailed = details(RUN)
    result = summarize(RUN, [99]) | detailed
    latencies = "mean_{0}_ms median_{0}_ms std_{0}_ms p99_{0}_ms"
    expected = (
        " ".join(latencies.format(metric) for metric in ("ttft", "tpot", "itl", "e2el"))
        + " duration completed failed total_input_tokens total_output_tokens request_throughput"
        + " request_goodput output_throughput total_token_throughput max_output_tokens_per_s"
        + " max_concurrent_requests input_lens output_lens ttfts itls start_times generated_texts errors"
    ).split()
    assert set(expected) <= set(result)
    assert all(len(each) == 3 for each in detailed.values())
    assert result["itls"] == [[1.0, 3.0], [1.0], []] and result["errors"] == ["", "", "HTTP 500: no"]
    assert json.loads(json.dumps(result, allow_nan=False))["ttfts"] == [1.0, 2.0, None]


@pytest.mark.parametrize(("cached", "said"), [(0, None), (5, "25.0%"), (20, "100.0%")])
def test_the_table_says_how_much_came_from_the_prefix_cache(cached, said):
    result = {**summarize(RUN, [99]), "cached_tokens": cached}
    lines = [line for line in result_lines(result, ("itl",), [99]) if line.startswith("Input tokens from")]
    assert [line.split()[-1] for line in lines] == ([] if said is None else [said])


def test_the_table():
    configured = {"request_rate": "inf", "max_concurrency": None}
    lines = list(result_lines(configured | summarize(RUN, [99]), ("ttft", "itl"), [99]))
    assert lines == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2",
        "Failed requests:                         1",
        "Benchmark duration (s):                  5.00",
        "Total input tokens:                      20",
        "Total generated tokens:                  5",
        "Request throughput (req/s):              0.40",
        "Output token throughput (tok/s):         1.00",
        "Peak output token throughput (tok/s):    2",
        "Peak concurrent requests:                2",
        "Total token throughput (tok/s):          5.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          1500.00",
        "Median TTFT (ms):                        1500.00",
        "P99 TTFT (ms):                           2000.00",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           1666.67",
        "Median ITL (ms):                         1000.00",
        "P99 ITL (ms):                            3000.00",
        "Max ITL (ms):                            3000.00",
        "P99 over median ITL:                     3.00",
        "==================================================",
    ]
    late = list(result_lines(summarize(RUN, [99], is_open_loop=True), ("ttft",), [99]))
    assert "P99 TTFT (ms):                           3000.00" in late[late.index(late[-8]) :]
    assert "Longest delay of sending (ms):           1000.00" in late


def test_notes_say_what_a_reader_must_know(capsys):
    odd = LoadRun([*RUN.records, record(0.0, 0.0, 1.0, prompt_tokens=12)])
    assert list(note_lines(summarize(odd, [99]), odd)) == [
        "tokens counted by: the server's usage (3 requests)",
        "the server counts other lengths for 1 prompts: 12 tokens there, 10 here",
        "first error of 1: HTTP 500: no",
    ]
    together = LoadRun([record(0.0, 0.0, 1.0, 1.0, 2.0)])
    note = "3 tokens came in 2 deliveries; ITL is the gap between two"
    assert note in note_lines(summarize(together, [99]), together)
    assert not any("in one read" in note for note in note_lines(summarize(together, [99]), together))
    starved = LoadRun([record(0.0, 0.0, 1.0, 1.0, 1.0), record(0.0, 0.0, 1.0)])
    assert any("1 answer in one read" in note for note in note_lines(summarize(starved, [99]), starved))
    print_kinds(RUN)
    title, long, short = capsys.readouterr().out.splitlines()
    assert title.split()[:2] == ["kind", "requests"]
    assert long.split() == ["long", "1", "1000.00", "1000.00", "1000.00", "3000.00", "3000.00"]
    assert short.split() == ["short", "1", "2000.00", "2000.00", "1000.00", "1000.00", "1000.00"]
    print_kinds(LoadRun(RUN.records[:1]))
    assert capsys.readouterr().out == ""


def test_the_plot_is_a_png(tmp_path):
    draw(RUN, "made up", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    draw(LoadRun([]), "empty", tmp_path / "empty.png")
    assert math.isfinite((tmp_path / "empty.png").stat().st_size)
