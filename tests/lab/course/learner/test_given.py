"""Tasks that `stubs --fill-before` answered: left out of what is next, and not counted as passed."""

from pathlib import Path

import pytest
from tests.lab.course.trees import edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.record.record import RECORD, Outcome, Record, load_record, save_record

Capture = pytest.CaptureFixture[str]


def said_by(capsys: Capture, *command: str) -> str:
    capsys.readouterr()
    assert main([*command]) == 0
    return capsys.readouterr().out


def test_the_course_begins_at_the_day_that_was_named(untouched: Path, capsys: Capture) -> None:
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ○   One"
    main(["stubs", "--fill-before", "2.1"])
    first, second, third, _, legend, given, _, count, after = said_by(capsys, "status").splitlines()
    assert (first, second, third) == ("  1.1  –   One", "  1.2  –   Two", "→ 2.1  ·○  Three")
    assert given == "– given by stubs --fill-before: 2 tasks" and "given" not in legend
    assert count == "0 of 4 tasks passed"
    assert after.startswith("next: 2.1.2 ")


def test_an_answer_that_was_changed_is_the_learners(untouched: Path, capsys: Capture) -> None:
    main(["stubs", "--fill-before", "1.2"])
    edit(untouched, "src/tiny_llm/sums.py", "_product(x, _TIMES)", "_product(_TIMES, x)")
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ◐   One"


def test_what_was_graded_counts_as_graded(untouched: Path, capsys: Capture) -> None:
    main(["stubs", "--fill-before", "1.2"])
    record = load_record(untouched)[0]
    outcome = Outcome(2, 0, 0, ran_all=True, source=record.given["1.1.1"], at="now")
    save_record(untouched, record.with_outcomes({"1.1.1": outcome}))
    first, *_, count, _ = said_by(capsys, "status").splitlines()
    assert (first, count) == ("  1.1  ✓   One", "1 of 4 tasks passed")


def test_a_record_of_before_is_read(tmp_path: Path) -> None:
    save_record(tmp_path, Record(hints={"1.1.1": 1}))
    path = tmp_path / RECORD
    path.write_text(path.read_text().replace(',\n "given": {}', ""))
    assert "given" not in path.read_text()
    assert load_record(tmp_path) == (Record(hints={"1.1.1": 1}), "")
