"""What a run of the tests notes in the record."""

import shutil

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.course.record.record import RECORD, load_record

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
