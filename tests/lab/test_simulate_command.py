"""`simulate` from its arguments to its last line."""

import argparse
import json

import pytest
from tests.helpers.simulating import MEASURED, forty_chats

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.simulate import command
from tiny_llm_lab.measure.simulate.command import COLUMNS, outcome_row
from tiny_llm_lab.measure.simulate.run import simulate
from tiny_llm_lab.runtime.console.tables import table_lines
from tiny_llm_lab.runtime.models.random.shapes import SHAPES
from tiny_llm_lab.runtime.solution import load_scheduling

Capture = pytest.CaptureFixture[str]

SMALL = ["simulate", "--requests", "20", "--lengths", "fixed:300:20", "--rate", "5"]


def test_command_prints_a_row_for_each_budget_and_slo(capsys: Capture) -> None:
    assert cli.main([*SMALL, "--sweep", "128", "256"]) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["budget", "128", "256", "slo"]
    assert "assumed, not measured: qwen3-8b at 1500 GB/s" in said.err


def test_the_header_of_a_wide_table(capsys: Capture) -> None:
    assert cli.main(SMALL) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.split("  ")[:2] == ["budget", "rate"] and "ITL p99 ms" in head and "goodput req/s" in head


def test_at_80_columns_no_number_is_cut_and_every_number_has_its_header() -> None:
    setting = forty_chats(budget="8192", rate=123.4)
    row = outcome_row(setting, simulate(load_scheduling("ref"), setting, MEASURED))
    lines = table_lines(COLUMNS, [row], 80)
    assert max(map(len, lines)) <= 80
    *heads, numbers = lines[:3]
    titles = [column.title.replace("\n", " ") for column in COLUMNS]
    note = " ".join(lines[3:]).removeprefix("left out at 80 columns: ")
    shown = [title for title in titles if title not in note.split(", ")]
    assert {"budget", "ITL p99 ms", "SLO", "in SLO", "goodput req/s", "TTFT p99 ms"} <= set(shown)
    assert numbers.split() == [cell for title, cell in zip(titles, row, strict=True) if title in shown]
    assert sorted(" ".join(heads).split()) == sorted(" ".join(shown).split())


@pytest.mark.parametrize(
    "flags", [("--max-num-batched-tokens", "--long-prefill-token-threshold"), ("--budget", "--threshold")]
)
def test_the_names_of_vllm_and_the_short_ones_are_the_same_flags(
    flags: tuple[str, str], capsys: Capture
) -> None:
    assert cli.main([*SMALL, "--json", flags[0], "128", flags[1], "32"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["budget"] == "128" and document["settings"]["threshold"] == 32
    assert document["runs"][0]["budget"] == "128" and document["runs"][0]["num_steps"] > 20 * 300 / 128


def test_help_explains_every_option_and_names_the_shapes() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    assert all(shape in parser.format_help() for shape in SHAPES)


def test_command_as_json_is_the_same_every_time(capsys: Capture) -> None:
    documents = []
    for _ in range(2):
        assert cli.main([*SMALL, "--json", "--budget", "slo", "--noise", "0.1"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["runs"] == documents[1]["runs"]
    assert documents[0]["settings"]["itl_slo_ms"] == 50 and documents[0]["step_cost"]["overhead_s"] == 0.001
    run = documents[0]["runs"][0]
    assert run["budget"] == "slo" and run["num_requests"] == 20 and run["itl"]["max_s"] < 0.05


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [(["--burstiness", "nan"], "--burstiness"), (["--requests", "0"], "--requests"),
     (["--rate", "0"], "--rate"), (["--rate", "inf"], "--rate"),
     (["--budget", "x"], "budget is"),
     (["--budget", "8"], "max_num_batched_tokens (8)"), (["--solution", "mlx-lm"], "has no BlockPool"),
     (["--shape", "gpt"], "unknown model"), (["--gb-s", "0"], "--gb-s"), (["--lengths", "x"], "--lengths"),
     (["--safety", "0.5"], "--safety")],
)  # fmt: skip
def test_command_refuses_what_it_cannot_simulate(argv: list[str], complaint: str, capsys: Capture) -> None:
    assert cli.main([*SMALL, *argv]) == 2
    assert complaint in capsys.readouterr().err
