"""What a run of the tests notes in the record."""

import shutil
from pathlib import Path

import pytest
from tests.helpers.trees import edit
from tests.lab.course.learner.small_course import Grade

from tiny_llm_lab.course.record.record import RECORD, Outcome, load_record

pytest_plugins = ["pytester"]


def noted(clone: Path, task: str = "1.1.1") -> Outcome:
    return load_record(clone)[0].outcomes[task]


def counts(outcome: Outcome) -> tuple[int, int, int, bool]:
    return outcome.passed, outcome.failed, outcome.todo, outcome.ran_all


def test_every_task_that_ran_is_noted(grade: Grade, written: Path) -> None:
    grade()
    assert counts(noted(written)) == (2, 0, 0, True)
    assert counts(noted(written, "1.2.1")) == (0, 0, 1, True)
    assert noted(written).is_pass and noted(written).passed_at == noted(written).at
    assert "1.1.2" not in load_record(written)[0].outcomes, "no test of it ran"


def test_a_setup_that_fails_is_a_failure(grade: Grade, written: Path) -> None:
    path = written / "tests/week_1/test_day_1.py"
    path.write_text(path.read_text() + "@pytest.fixture(autouse=True)\ndef broken():\n    raise ValueError\n")
    grade()
    assert counts(noted(written)) == (0, 2, 0, True)


def test_a_skipped_test_ran(grade: Grade, written: Path) -> None:
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
def test_a_part_of_a_tasks_tests_is_no_pass(grade: Grade, written: Path, args: tuple[str, ...]) -> None:
    grade(*args)
    assert counts(noted(written)) == (1, 0, 0, False)


def test_one_of_a_days_files_is_not_all(grade: Grade, written: Path) -> None:
    extra = written / "tests/week_1/test_day_1_more.py"
    extra.write_text('import pytest\n@pytest.mark.task("1.1.1")\ndef test_more():\n    pass\n')
    grade("tests/week_1/test_day_1.py")
    assert counts(noted(written)) == (2, 0, 0, False)
    grade("tests/week_1")
    assert counts(noted(written)) == (3, 0, 0, True)


def test_a_broken_record_is_said_and_replaced(grade: Grade, written: Path) -> None:
    (written / RECORD).parent.mkdir()
    (written / RECORD).write_text("{")
    assert grade().count(": starting a new record") == 1
    assert "starting a new record" not in grade()


def test_a_package_of_another_folder_is_not_noted(
    grade: Grade, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(written / "src", other)
    monkeypatch.syspath_prepend(str(other))
    assert "passed" in grade()
    assert not (written / RECORD).exists()
