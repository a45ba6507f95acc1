"""Tables of commands at the widths that people have: no number, no header and no answer is ever cut."""

import pytest
from rich.cells import cell_len

from tiny_llm_lab.cli.batch_report import COLUMNS
from tiny_llm_lab.runtime.console.tables import KEEP, Column, part_lines, table_lines

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
    assert "left out at 76 columns: ITL max ms, tok/s" in " ".join(lines)
    narrower = " ".join(table_lines(COLUMNS, [ROW], 66))
    assert "left out at 66 columns: in tok, ITL max ms, tok/s" in narrower


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
