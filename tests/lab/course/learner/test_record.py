"""The record of grading: what is kept of several runs, and its file."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.course.record.record import RECORD, Outcome, Record, load_record, save_record

PASS = Outcome(passed=3, failed=0, todo=0, ran_all=True, source="a", at="2026-01-02T10:00:00")


def after(*outcomes):
    record = Record()
    for each in outcomes:
        record = record.with_outcomes({"1.1.1": each})
    return record.outcomes["1.1.1"]


@pytest.mark.parametrize(
    "changed",
    [{"failed": 1}, {"todo": 1}, {"ran_all": False}, {"passed": 0}],
    ids=lambda each: next(iter(each)),
)
def test_a_task_passes_only_when_all_its_tests_ran_and_passed(changed):
    assert PASS.is_pass
    assert not replace(PASS, **changed).is_pass


def test_a_green_run_of_a_part_leaves_a_full_one_of_the_same_code():
    part = replace(PASS, passed=1, ran_all=False, at="later")
    assert after(PASS, part) == after(PASS)
    assert not after(PASS, replace(part, source="b")).is_pass
    assert after(PASS, replace(part, failed=1)).failed == 1
    assert after(PASS, replace(part, todo=1)).todo == 1


def test_the_first_pass_is_remembered():
    assert after(PASS).passed_at == PASS.at
    assert after(PASS, replace(PASS, failed=1, at="later")).passed_at == PASS.at
    assert after(replace(PASS, failed=1)).passed_at == ""
    assert after(PASS, replace(PASS, source="b", at="later")).passed_at == PASS.at


def test_the_file_holds_outcomes_and_hints(tmp_path):
    record = Record({"1.1.1": PASS}).with_hints("1.1.2", 2)
    save_record(tmp_path, record)
    assert load_record(tmp_path) == (record, "")
    assert [path.name for path in (tmp_path / RECORD).parent.iterdir()] == [RECORD.name], (
        "nothing is left over"
    )


def test_a_write_that_is_cut_off_leaves_the_old_record(tmp_path, monkeypatch):
    save_record(tmp_path, Record({"1.1.1": PASS}))
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("cut off"))
    with pytest.raises(pytest.fail.Exception):
        save_record(tmp_path, Record())
    assert load_record(tmp_path)[0].outcomes == {"1.1.1": PASS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"version": 2, "outcomes": {}, "hints": {}}',
        '{"version": 1, "hints": {}}',
        '{"version": 1, "outcomes": {"1.1.1": {"passed": 1}}, "hints": {}}',
        '{"version": 1, "outcomes": {"1.1.1": 3}, "hints": {}}',
        '{"version": 1, "outcomes": {}, "hints": {"1.1.1": null}}',
    ],
)
def test_a_broken_file_is_one_line_and_a_new_record(tmp_path, text):
    (tmp_path / RECORD).parent.mkdir()
    (tmp_path / RECORD).write_text(text, encoding="latin-1")
    assert load_record(tmp_path) == (Record(), f"cannot read {RECORD}: starting a new record")


# What a run of the tests notes in the record


pytest_plugins = ["pytester"]


def noted(clone, task="1.1.1"):
    return load_record(clone)[0].outcomes[task]


def counts(outcome):
    return outcome.passed, outcome.failed, outcome.todo, outcome.ran_all


def test_every_task_that_ran_is_noted(grade, written):
    grade()
    assert counts(noted(written)) == (2, 0, 0, True)
    assert counts(noted(written, "1.2.1")) == (0, 0, 1, True)
    assert noted(written).is_pass and noted(written).passed_at == noted(written).at
    assert "1.1.2" not in load_record(written)[0].outcomes, "no test of it ran"


def test_a_setup_that_fails_is_a_failure(grade, written):
    path = written / "tests/week_1/test_day_1.py"
    path.write_text(path.read_text() + "@pytest.fixture(autouse=True)\ndef broken():\n    raise ValueError\n")
    grade()
    assert counts(noted(written)) == (0, 2, 0, True)


def test_a_skipped_test_ran(grade, written):
    skips = "def test_twice(llm):\n    pytest.skip('no GPU')"
    edit(written, "tests/week_1/test_day_1.py", "def test_twice(llm):", skips)
    grade()
    assert counts(noted(written)) == (1, 0, 0, True) and noted(written).is_pass


@pytest.mark.parametrize(
    "args",
    [
        ("tests", "-k", "thrice"),
        ("tests/week_1/test_day_1.py::test_thrice",),
        ("tests", "--deselect", "tests/week_1/test_day_1.py::test_twice"),
    ],
    ids=["-k", "::", "--deselect"],
)
def test_a_part_of_a_tasks_tests_is_no_pass(grade, written, args):
    grade(*args)
    assert counts(noted(written)) == (1, 0, 0, False)


def test_one_of_a_days_files_is_not_all(grade, written):
    extra = written / "tests/week_1/test_day_1_more.py"
    extra.write_text('import pytest\n@pytest.mark.task("1.1.1")\ndef test_more():\n    pass\n')
    grade("tests/week_1/test_day_1.py")
    assert counts(noted(written)) == (2, 0, 0, False)
    grade("tests/week_1")
    assert counts(noted(written)) == (3, 0, 0, True)


def test_a_broken_record_is_said_and_replaced(grade, written):
    (written / RECORD).parent.mkdir()
    (written / RECORD).write_text("{")
    assert grade().count(": starting a new record") == 1
    assert "starting a new record" not in grade()


def test_a_package_of_another_folder_is_not_noted(grade, written, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(written / "src", other)
    monkeypatch.syspath_prepend(str(other))
    assert "passed" in grade()
    assert not (written / RECORD).exists()
