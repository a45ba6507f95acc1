"""`hint`: one at a time, remembered, and never past the last one."""

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.exercises import exercises
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import RECORD, Outcome, Record, load_record, save_record
from tiny_llm_lab.course.record.standing import open_desk
from tiny_llm_lab.course.starter import stubs
from tiny_llm_lab.course.starter.stubs import given_files, to_extend

Capture = pytest.CaptureFixture[str]
FIRST, SECOND = "hint 1 of 2: What is x + x?", "hint 2 of 2: Multiply by 2."
REST = "the chapter has the rest: book/src/one.md#task-111-twice-a-number"


def hint(capsys, *args):
    capsys.readouterr()
    assert main(["hint", *args]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_call_shows_one_more(clone, capsys):
    assert hint(capsys, "1.1.1") == ["1.1.1 twice", FIRST]
    assert hint(capsys, "1.1.1") == ["1.1.1 twice", SECOND, REST]
    assert hint(capsys, "1.1.1")[1:] == [
        "there are no more hints: ./pdmw run hint 1.1.1 --again shows those you saw",
        REST,
    ]
    assert load_record(clone)[0].hints == {"1.1.1": 2}


def test_again_shows_those_seen_and_no_more(clone, capsys):
    assert main(["hint", "1.1.1", "--again"]) == 2
    assert "you have not seen a hint for task 1.1.1 yet: run ./pdmw run hint" in capsys.readouterr().err
    hint(capsys, "1.1.1")
    assert hint(capsys, "1.1.1", "--again") == ["1.1.1 twice", FIRST]
    assert hint(capsys, "1.1.1")[1] == SECOND
    assert hint(capsys, "1.1.1", "--again")[1:] == [FIRST, SECOND, REST]


@pytest.mark.usefixtures("clone")
def test_a_task_without_hints_names_its_chapter(capsys):
    assert hint(capsys, "1.2.1") == ["1.2.1 the counter", "this task has no hints: read book/src/two.md"]


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("1.1.9", "there is no task '1.1.9': did you mean 1.1."),
        ("1.1", "1.1 is a day: choose one of its tasks, 1.1.1, 1.1.2"),
        ("twice", "there is no task 'twice': the course has 1.1.1 to 1.2.2"),
    ],
)
def test_an_unknown_task_is_one_line(name, says, capsys):
    assert main(["hint", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}") and err.count("\n") == 1


# `stubs --fill-before`: earlier days have their answers, which the record notes; a learner's work stays


REFUSED = (
    "sums.py in src/tiny_llm has your edits and stubs of earlier days: commit and delete it, move it, or"
)


def filled(untouched, capsys, day, code=0):
    """The file and what was said."""
    assert main(["stubs", "--fill-before", day]) == code
    return (untouched / "src/tiny_llm/sums.py").read_text(), capsys.readouterr().err


def test_files_of_days_that_are_all_given_are_those_of_the_reference():
    course = load_course()
    last = course.days[-1].id
    given, sources = given_files(course, last, stubs.starter(course)), exercises(course)
    for name, source in sources.items():
        if source.task_of and all(course.is_later(last, task.day_id) for task in source.task_of.values()):
            assert given[name] == source.text, name


def test_later_days_stay_to_do(untouched, capsys):
    text, said = filled(untouched, capsys, "1.2")
    assert 'raise NotImplementedError("task 1.2.1")' in text
    assert 'raise NotImplementedError("task 2.1.1")' in text
    assert "return _product(x, _TIMES)" in text and "# How often.\n_TIMES = 2\n" in text
    assert "_sum" not in text and "import math" not in text, "they come with a later task's answer"
    assert '"task 1.2.1"' in (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert said == "wrote 1 file of src/tiny_llm: the days before 1.2 have their answers\n"
    text, said = filled(untouched, capsys, "2.1")
    assert "self.parts.extend(items)" in text, "what was given before was not edited"
    kernel = (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert "return n;" in kernel and "return -n;" not in kernel
    assert not list(untouched.rglob("*.backup*"))


def test_tasks_of_the_day_that_come_along_are_named(untouched, capsys):
    _, said = filled(untouched, capsys, "2.1")
    assert "task 2.1.1 comes with the functions that it extends, twice, Total\n" in said
    assert "task 2.1.2 comes with the functions that it extends, twice: nothing is left to write\n" in said
    assert open_desk().standing.next_task == open_desk().course.task("2.1.2")
    assert [task.id for task in open_desk().standing.passed_by] == ["2.1.1"], "1.2.1 was given, and is C++"


@pytest.mark.parametrize("mine", ["def broken(:  # task\n", "def mine():\n    return 1\n"])
def test_an_edited_file_with_stubs_is_refused(untouched, capsys, mine):
    path, kernel = untouched / "src/tiny_llm/sums.py", untouched / "src/tiny_llm/kernels/sum.cpp"
    path.write_text(path.read_text() + mine)
    before = path.read_text(), kernel.read_text()
    text, said = filled(untouched, capsys, "2.1", code=2)
    assert (text, kernel.read_text()) == before
    assert REFUSED in said and said.count("\n") == 1
    path.unlink()
    assert "self.parts.extend(items)" in filled(untouched, capsys, "2.1")[0]


def test_a_file_without_a_stub_of_these_days_stays(untouched, capsys):
    path = untouched / "src/tiny_llm/sums.py"
    mine = path.read_text().replace('raise NotImplementedError("task 1.1.1")', "return x + x")
    path.write_text(mine)
    text, said = filled(untouched, capsys, "1.2")
    assert text == mine and said.startswith("wrote 0 files")
    assert REFUSED in filled(untouched, capsys, "2.1", code=2)[1]


def test_notes_of_a_learner_are_kept_beside(untouched, capsys):
    path = untouched / "src/tiny_llm/sums.py"
    noted = path.read_text() + "# Think of zero.\n"
    path.write_text(noted)
    assert "that version is in sums.py.backup1\n" in filled(untouched, capsys, "1.2")[1]
    assert path.with_name("sums.py.backup1").read_text() == noted


def said_by(capsys, *command):
    capsys.readouterr()
    assert main([*command]) == 0
    return capsys.readouterr().out


def test_the_course_begins_at_the_day_that_was_named(untouched, capsys):
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ○   One"
    main(["stubs", "--fill-before", "2.1"])
    first, second, third, _, legend, given, _, count, after = said_by(capsys, "status").splitlines()
    assert (first, second, third) == ("  1.1  –   One", "  1.2  –   Two", "→ 2.1  ·○  Three")
    assert given == "– given by stubs --fill-before: 2 tasks" and "given" not in legend
    assert count == "0 of 4 tasks passed"
    assert after.startswith("next: 2.1.2 ")


def test_an_answer_that_was_changed_is_the_learners(untouched, capsys):
    main(["stubs", "--fill-before", "1.2"])
    edit(untouched, "src/tiny_llm/sums.py", "_product(x, _TIMES)", "_product(_TIMES, x)")
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ◐   One"


def test_what_was_graded_counts_as_graded(untouched, capsys):
    main(["stubs", "--fill-before", "1.2"])
    record = load_record(untouched)[0]
    outcome = Outcome(2, 0, 0, ran_all=True, source=record.given["1.1.1"], at="now")
    save_record(untouched, record.with_outcomes({"1.1.1": outcome}))
    first, *_, count, _ = said_by(capsys, "status").splitlines()
    assert (first, count) == ("  1.1  ✓   One", "1 of 4 tasks passed")


def test_a_record_of_before_is_read(tmp_path):
    save_record(tmp_path, Record(hints={"1.1.1": 1}))
    path = tmp_path / RECORD
    path.write_text(path.read_text().replace(',\n "given": {}', ""))
    assert "given" not in path.read_text()
    assert load_record(tmp_path) == (Record(hints={"1.1.1": 1}), "")


def test_what_given_days_extend_in_a_learners_own_files_is_still_to_do():
    course = load_course()
    found = to_extend(course, "4.1", ["engine/core.py"], {"3.9.6"})
    assert "3.7.2" in found and "3.9.6" not in found, "the second is written"
    assert all(task < "4.1" and name.startswith("EngineCore") for task in found for name in found[task])
    assert to_extend(course, "3.6", ["engine/core.py"], ()) == {}
    assert to_extend(course, "4.1", [], ()) == {}
