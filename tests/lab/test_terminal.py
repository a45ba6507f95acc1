"""What commands print at the widths that people have: tables, long lines, how far a command is."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from tiny_llm_lab.cli.batch_report import COLUMNS
from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.runtime.console import talk
from tiny_llm_lab.runtime.console.tables import KEEP, Column, part_lines, print_lines, table_lines
from tiny_llm_lab.runtime.console.talk import Remaining, wrapped_lines

ANSWER = "Mira keeps the brass compass in the attic of her house"
ROW = ["3", "length", "1024", "256", "1234.5", "127.3", "133.9", "515.2", "7.9", ANSWER]
HEADS = [" ".join(column.title.split("\n")) for column in COLUMNS]


def test_where_there_is_room_a_row_is_a_line():
    head, row = table_lines(COLUMNS, [ROW], 200)
    assert [title in head for title in HEADS] == [True] * len(HEADS)
    assert row.split() == [*ROW[:-1], *ANSWER.split()]
    assert table_lines(COLUMNS, [ROW], None) == [head, row]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_number_header_or_answer_is_cut(width):
    lines = table_lines(COLUMNS, [ROW, ROW], width)
    assert max(map(cell_len, lines)) <= width
    words = " ".join(lines).split()
    assert all(words.count(word) >= 2 for word in ANSWER.split()), "all of both answers"
    assert all(words.count(number) == 2 for number in ("1234.5", "133.9")), "columns that stay"
    numbers = {word for word in words if word.replace(".", "").isdigit()} - {str(width)}
    assert numbers <= set(ROW), "a number is whole, or its column is not there"


def test_columns_go_by_priority_and_are_named():
    lines = table_lines(COLUMNS, [ROW], 76)
    assert "left out at 76 columns: in tok, tok/s" in " ".join(lines)
    narrower = " ".join(table_lines(COLUMNS, [ROW], 66))
    assert "left out at 66 columns: in tok, ITL p50 ms, tok/s" in narrower


def test_titles_stack_before_anything_is_left_out():
    columns = [Column("requests\nper second"), Column("ITL\np99 ms")]
    assert table_lines(columns, [["1", "2"]], 40) == ["requests per second  ITL p99 ms",
                                                      "                  1           2"]  # fmt: skip
    assert table_lines(columns, [["1", "2"]], 20) == [
        "  requests     ITL",
        "per second  p99 ms",
        "         1       2",
    ]


def test_at_40_columns_a_row_is_title_and_value_lines():
    lines = table_lines(COLUMNS, [ROW], 40)
    assert lines[:3] == ["prompt: 3", "status: length", "in tok: 1024"]
    assert "ITL p99 ms: 133.9" in lines
    assert lines[-3:] == ["text: Mira keeps the brass compass in", "the attic of her house", ""]


def test_wide_characters_count_as_two_and_long_words_break():
    columns = [Column("n", KEEP), Column("text", KEEP, is_text=True)]
    lines = table_lines(columns, [["1", "漢字" * 12]], 24)
    assert max(map(cell_len, lines)) <= 24
    assert "".join("".join(lines[1:]).split()) == "1" + "漢字" * 12


def test_a_table_without_rows_is_its_header():
    assert table_lines([Column("a"), Column("b")], [], None) == ["a  b"]


def test_a_line_of_parts_breaks_between_them():
    line = "8 requests · 258 tokens in 0.85 s · ITL p50 1.6 p99 97.7 ms"
    assert part_lines(line, None) == part_lines(line, 80) == [line]
    assert part_lines(line, 40) == ["8 requests · 258 tokens in 0.85 s", "ITL p50 1.6 p99 97.7 ms"]


# Long lines on a narrow terminal


LONG = "TODO 1.1.2: write src/tiny_llm/layers/attention.py:22 scaled_dot_product_attention_simple (17 tests)"


def test_a_line_breaks_between_words_and_goes_on_behind_an_indent():
    lines = wrapped_lines(LONG, 80)
    assert lines == [LONG[:53], f"  {LONG[54:]}"]
    assert wrapped_lines(f"  {LONG}", 60, "    ")[1].startswith("    scaled")


def test_a_word_that_is_wider_than_the_terminal_stays_whole():
    path = f"/{'folder/' * 12}file-of-tests.py:22"
    assert wrapped_lines(f"error: {path}: fix that line first", 60) == [
        "error:",
        f"  {path}:",
        "  fix that line first",
    ]


@pytest.mark.parametrize("width", [None, 20, len(LONG)])
def test_a_pipe_and_a_wide_terminal_break_nothing(width):
    assert wrapped_lines(LONG, width) == [LONG]


@pytest.mark.parametrize("width", [None, 60])
def test_line_breaks_and_blank_lines_stay(width):
    assert wrapped_lines("one\n\n  two", width) == ["one", "", "  two"]


def test_an_error_fits_the_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(talk, "terminal_width", lambda stream: 60)
    assert main(["status", "--no-such-flag", "and", "more", "words", "than", "there", "is", "room"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("  ")


def test_prose_of_a_benchmark_breaks_between_words_on_a_terminal():
    for is_terminal, lines in ((True, wrapped_lines(LONG, 60)), (False, [LONG])):
        console = Console(file=io.StringIO(), width=60, force_terminal=is_terminal)
        print_lines(console, [LONG])
        assert console.file.getvalue().splitlines() == lines


# The words for how far a command is


TIMES = [
    (0.0, "3 of 11, less than a minute left"),
    (22.0, "3 of 11, less than a minute left"),
    (23.0, "3 of 11, about 1 minute left"),
    (180.0, "3 of 11, about 8 minutes left"),
]


@pytest.mark.parametrize(("took_s", "said"), TIMES)
def test_the_rest_takes_as_long_for_each_as_so_far(took_s, said):
    times = iter([100.0, *[100.0 + took_s] * 3])
    remaining = Remaining(11, lambda: next(times))
    assert remaining.now() == "0 of 11"
    assert [remaining.done() for _ in range(3)][-1] == said


def test_nothing_is_left_after_the_last():
    remaining = Remaining(2, lambda: 5.0)
    assert [remaining.done(), remaining.done()] == ["1 of 2, less than a minute left", "2 of 2"]


def test_what_is_left_out_is_not_counted():
    remaining = Remaining(3, lambda: 5.0)
    remaining.done()
    remaining.leave_out(1)
    assert remaining.done() == "2 of 2"
