"""Long lines on a narrow terminal."""

import io

import pytest
from rich.console import Console

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.runtime.console import talk as cli_errors
from tiny_llm_lab.runtime.console.tables import print_lines
from tiny_llm_lab.runtime.console.talk import wrapped_lines

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
    monkeypatch.setattr(cli_errors, "terminal_width", lambda stream: 60)
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
