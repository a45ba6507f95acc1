"""`status`, and the words it is known by in a terminal of 80 columns."""

import sys
from io import BytesIO, TextIOWrapper

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner.status import status_lines
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import RECORD, Record
from tiny_llm_lab.course.record.standing import standing

pytest_plugins = ["pytester"]
Capture = pytest.CaptureFixture[str]


def status(capsys):
    capsys.readouterr()
    assert main(["status"]) == 0
    return capsys.readouterr().out.splitlines()


def test_it_needs_no_record(clone, capsys):
    first, second, _, legend, _, count, after = status(capsys)
    assert (first, second) == ("→ 1.1  ○·  One", "  1.2  ○○  Two")
    assert legend == "✓ passed  ✗ failing  ◐ written, not graded  ○ to do  · optional (C++, Metal)"
    assert count == "0 of 4 tasks passed"
    assert after == "next: 1.1.1 twice (./pdmw run next says where)"
    assert not (clone / RECORD).exists()


def test_a_sign_for_each_state(grade, written, capsys):
    assert status(capsys)[0] == "→ 1.1  ◐·  One"
    grade()
    assert status(capsys)[:2] == ["  1.1  ✓·  One", "→ 1.2  ○○  Two"]
    edit(written, "src/tiny_llm/sums.py", "3 * x", "4 * x")
    assert status(capsys)[:2] == ["  1.1  ◐·  One", "→ 1.2  ○○  Two"]
    grade()
    assert status(capsys)[:2] == ["→ 1.1  ✗·  One", "  1.2  ○○  Two"]


def test_a_terminal_of_ascii(clone, monkeypatch):
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["status"]) == 0
    out.seek(0)
    assert out.read().splitlines()[:4] == [
        "> 1.1  o.  One",
        "  1.2  oo  Two",
        "",
        "+ passed  x failing  ~ written, not graded  o to do  . optional (C++, Metal)",
    ]


def test_the_course_fits_80_columns():
    course = load_course()
    lines = [line.plain for line in status_lines(standing(course, Record()))]
    assert max(map(len, lines)) <= 80
    assert sum(line[2:5] in {day.id for day in course.days} for line in lines) == len(course.days)
