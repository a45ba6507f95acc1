"""Spelling of the pages: common mistakes are found with their place."""

from pathlib import Path

import pytest

from tiny_llm_lab.course.book.chapters import spelling
from tiny_llm_lab.course.book.chapters.spelling import spelling_problems

WRONG = "rec" + "ieve"  # in two pieces: this file is read too


def test_a_misspelt_word_is_found_with_its_line_in_every_place(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"one\nyou {WRONG} it\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "more.md").write_text(f"{WRONG}\n")
    (tmp_path / "docs" / "data.json").write_text(f"{WRONG}\n")
    assert spelling_problems(tmp_path, ["README.md", "docs", "missing"]) == [
        f"README.md:2: {WRONG} ==> receive",
        f"docs/more.md:1: {WRONG} ==> receive",
    ]


def test_a_name_of_the_corpus_is_right(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Ines keeps the map.\n")
    assert spelling_problems(tmp_path, ["README.md"]) == []


def test_a_missing_tool_is_a_problem_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spelling.importlib.util, "find_spec", lambda _: None)
    assert spelling_problems(tmp_path) == ["codespell is not installed: `./pdmw install` brings it"]
