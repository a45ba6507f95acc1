"""`stubs --fill-before`: earlier days have their answers, and a learner's work stays."""

import ast
from pathlib import Path

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.cutting import fill_kernel
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.desk import open_desk
from tiny_llm_lab.course.record.record import Outcome, Record, save_record
from tiny_llm_lab.course.source import exercises
from tiny_llm_lab.course.starter import stubs
from tiny_llm_lab.course.starter.fill_before import filling, is_given
from tiny_llm_lab.course.starter.filling import fill_stubs

Capture = pytest.CaptureFixture[str]


def filled(untouched: Path, capsys: Capture, day: str, code: int = 0) -> tuple[str, str]:
    """The file and what was said."""
    assert main(["stubs", "--fill-before", day]) == code
    return (untouched / "src/tiny_llm/sums.py").read_text(), capsys.readouterr().err


def test_filling_all_of_a_starter_gives_the_reference() -> None:
    course = load_course()
    starter = stubs.starter(course)
    for name, source in exercises(course).items():
        if not name.endswith("__init__.py"):
            done = fill_stubs(starter[name], source.text, list(source.task_of))
            assert done.text == source.text, name
            assert not done.kept and not done.clashing
    for path in [*(course.reference / "kernels").glob("*.cpp"), *course.reference.rglob("*.metal")]:
        answer = path.read_text()
        assert fill_kernel(starter[f"kernels/{path.name}"], answer, lambda task: True) == answer


def test_later_days_stay_to_do(untouched: Path, capsys: Capture) -> None:
    text, said = filled(untouched, capsys, "1.2")
    assert 'raise NotImplementedError("task 1.2.1")' in text
    assert 'raise NotImplementedError("task 2.1.1")' in text
    assert "return _product(x, _TIMES)" in text and "# How often.\n_TIMES = 2\n" in text
    assert "_sum" not in text and "import math" not in text, "they come with a later task's answer"
    assert '"task 1.2.1"' in (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert "1 files of src/tiny_llm changed: 2 functions of the days before 1.2" in said
    assert "final form, with what later tasks add (2.1.1, 2.1.2): nothing is left to write in 2.1.2\n" in said
    assert not list(untouched.rglob("*.backup*")), "nothing of a learner's was there"


def test_what_was_filled_before_was_not_edited(untouched: Path, capsys: Capture) -> None:
    filled(untouched, capsys, "1.2")
    text, said = filled(untouched, capsys, "2.1")
    assert "self.parts.extend(items)" in text and "edited" not in said
    assert not list(untouched.rglob("*.backup*"))
    path = untouched / "src/tiny_llm/kernels/sum.cpp"
    path.write_text(path.read_text().replace("return n;", "return 0 + n;"))
    (untouched / "src/tiny_llm/sums.py").write_text(text.replace("x, _TIMES", "_TIMES, x"))
    course = untouched / "course.toml"
    course.write_text(f'{course.read_text()}\n[[day]]\nid = "2.2"\ntitle = "Four"\nchapter = "four.md"\n')
    filled(untouched, capsys, "2.2")
    assert len(list(untouched.rglob("*.backup*"))) == 2, "what a learner changed is kept"


@pytest.mark.parametrize("day", ["1.3", "2.4", "3.2", "3.8"])
def test_a_filled_package_has_nothing_of_a_learners(day: str) -> None:
    course = load_course()
    texts = filling(course, day, stubs.starter(course)).texts
    assert texts and all(is_given(course, name, text) for name, text in texts.items())


def test_kernels_are_filled_by_their_parts(untouched: Path, capsys: Capture) -> None:
    filled(untouched, capsys, "2.1")
    text = (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert "return n;" in text and "return -n;" not in text
    own = text.replace("return n;", "return 7 * n;")
    (untouched / "src/tiny_llm/kernels/sum.cpp").write_text(own)
    filled(untouched, capsys, "2.1")
    assert (untouched / "src/tiny_llm/kernels/sum.cpp").read_text() == own


def test_what_a_learner_wrote_stays_and_is_kept_beside(untouched: Path, capsys: Capture) -> None:
    path = untouched / "src/tiny_llm/sums.py"
    stub = 'raise NotImplementedError("task 1.1.1")'
    mine = path.read_text().replace(stub, "return mine(x)", 1) + "\n\ndef mine(x):\n    return x + x  # own\n"
    path.write_text(mine)
    text, said = filled(untouched, capsys, "2.1")
    assert "return mine(x)" in text and text.endswith("def mine(x):\n    return x + x  # own\n")
    assert "self.parts = deque[int]()" in text and "def _sum" in text
    assert "_TIMES" not in text, "only the answer to twice needs it"
    assert path.with_name("sums.py.backup1").read_text() == mine
    assert "sums.py was edited: kept as sums.py.backup1\n" in said
    ast.parse(text)
    again, said = filled(untouched, capsys, "2.1")
    assert again == text and "0 files" in said


def test_an_own_answer_is_still_to_be_extended(untouched: Path, capsys: Capture) -> None:
    path = untouched / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace('raise NotImplementedError("task 1.1.1")', "return x + x", 1))
    course = untouched / "course.toml"
    course.write_text(f'{course.read_text()}\n[[day]]\nid = "2.2"\ntitle = "Four"\nchapter = "four.md"\n')
    _, said = filled(untouched, capsys, "2.2")
    assert "task 2.1.2 extends twice: yours, left alone; extending it is still to do\n" in said
    assert "task 2.1.1 extends twice, Total:" not in said
    passed = Outcome(2, 0, 0, ran_all=True, source="", at="now", passed_at="now")
    save_record(untouched, Record({"2.1.2": passed}))
    assert "task 2.1.2" not in filled(untouched, capsys, "2.2")[1], "it has passed"


def test_an_own_helper_of_the_same_name_is_not_used_for_another(untouched: Path, capsys: Capture) -> None:
    path = untouched / "src/tiny_llm/sums.py"
    path.write_text(path.read_text() + "\n\ndef _product(x, y, z):\n    return x * y * z\n")
    text, said = filled(untouched, capsys, "1.2", code=1)
    assert "return x * y * z\n" in text and text.count("def _product") == 1
    assert "twice is still to do: its answer brings another _product than yours\n" in said
    assert "self.parts = deque[int]()" in text, "the rest is filled"


def test_imports_go_into_those_that_are_there(untouched: Path, capsys: Capture) -> None:
    path = untouched / "src/tiny_llm/sums.py"
    mine = path.read_text().replace("\nfrom coll", "\nfrom collections import Counter\nfrom coll", 1)
    path.write_text(mine + "\n\nprint(Counter())\n")
    text, _ = filled(untouched, capsys, "1.2")
    assert "from collections import deque, Counter\nfrom collections.abc" in text


@pytest.mark.parametrize(
    ("day", "says"), [("9.9", "there is no day '9.9': the course has"), ("2", "there is no day '2'")]
)
def test_a_day_that_does_not_exist_is_one_line(untouched: Path, capsys: Capture, day: str, says: str) -> None:
    assert says in filled(untouched, capsys, day, code=2)[1]


def test_a_file_that_is_not_python_is_one_line(untouched: Path, capsys: Capture) -> None:
    path = untouched / "src/tiny_llm/sums.py"
    path.write_text("def broken(:\n")
    text, said = filled(untouched, capsys, "1.2", code=2)
    assert text == "def broken(:\n"
    assert "src/tiny_llm/sums.py:1 is not Python" in said and said.count("\n") == 1


def test_the_day_where_a_learner_begins_is_noted(untouched: Path, capsys: Capture) -> None:
    filled(untouched, capsys, "2.1")
    task = open_desk().standing.next_task
    assert task is not None and task.id == "2.1.2"
    assert [task.id for task in open_desk().standing.passed_by] == ["2.1.1"], "1.2.1 was given, and is C++"
    assert main(["stubs", "--force"]) == 0
    task = open_desk().standing.next_task
    assert task is not None and task.id == "1.1.1", "all is to be written again"
