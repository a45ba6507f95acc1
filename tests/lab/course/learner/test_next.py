"""`next`: where to write, what, and how it is tested."""

import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper

import pytest
from tests.helpers.trees import course_files, edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner.next_task import next_lines
from tiny_llm_lab.course.learner.status import status_lines
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record import recorder
from tiny_llm_lab.course.record.record import RECORD, Outcome, Record, TaskSources, load_record, save_record
from tiny_llm_lab.course.record.standing import Standing, State, chapter_of, open_desk, standing

pytest_plugins = ["pytester"]
FILES = course_files("small")
ANSWER, KERNEL = FILES["src/tiny_llm_ref/sums.py"], FILES["src/tiny_llm/kernels/sum.cpp"]
SUMS = "src/tiny_llm/sums.py"


def said(capsys):
    capsys.readouterr()
    assert main(["next"]) == 0
    return capsys.readouterr().out


def test_a_task_with_its_place_signatures_and_commands(clone, capsys):
    assert (
        said(capsys)
        == """\
next: 1.1.1 twice (day 1.1, One)

  src/tiny_llm/sums.py:5
    def twice(x: int, of: str = "a") -> int
    def thrice(x: int) -> int
  about 2 lines

  read:  book/src/one.md#task-111-twice-a-number
  watch: ./pdmw run watch 1.1.1
  test:  ./pdmw run test 1.1.1
  help:  ./pdmw run hint
"""
    )


def test_only_what_is_left_of_a_task_is_shown(clone, capsys):
    path = clone / "src/tiny_llm/sums.py"
    path.write_text(path.read_text().replace('raise NotImplementedError("task 1.1.1")', "return 2 * x", 1))
    out = said(capsys)
    assert "src/tiny_llm/sums.py:9\n" in out and "def thrice" in out and "def twice" not in out


def test_a_method_is_shown_with_its_class(grade, written, capsys):
    grade()
    out = said(capsys)
    assert out.startswith("next: 1.2.1 the counter (day 1.2, Two)\n\n  src/tiny_llm/counter.py:4\n")
    assert "    def Counter.__init__(self) -> None\n    def Counter.step(self) -> int\n" in out
    assert "  read:  book/src/two.md\n" in out, "a page without a section for the task"
    assert out.endswith("\noptional, nothing later needs them: 1.1.2 a fast sum (C++)\n")
    assert "hint" not in out, "the task has none"


def test_a_failing_and_an_ungraded_task_say_so(grade, written, capsys):
    edit(written, SUMS, "3 * x", "4 * x")
    assert "  you have written it, and it has not passed yet: run its tests\n" in said(capsys)
    grade()
    assert "  1 of its 2 tests failed when they ran last\n" in said(capsys)
    grade("-k", "thrice")
    assert "  its tests failed when they ran last\n" in said(capsys), "how many do, a part does not tell"


def test_what_changed_since_it_passed_is_named(grade, written, capsys):
    grade()
    edit(written, SUMS, "3 * x", "x * 3")
    out = said(capsys)
    assert "\nchanged since it passed: 1.1.1 twice\n  ./pdmw run test 1.1.1 grades it again\n" in out


def test_every_task_of_the_course_fits_80_columns():
    course = load_course()
    for task in course.tasks:
        states = {each.id: State.PASSED for each in course.tasks} | {task.id: State.TODO}
        lines = next_lines(replace(open_desk(course), standing=Standing(course, states)))
        # A path with an anchor may be longer than a line.
        assert all(len(line) <= 80 for line in lines if "read:" not in line), task.id


def test_a_section_on_the_second_page_of_a_day_is_found(clone):
    edit(clone, "course.toml", 'chapter = "two.md"', 'chapter = "two.md"\nmore = ["more.md"]')
    (clone / "book/src/more.md").write_text("## Task 1.2.2: twice\n")
    course = load_course(clone)
    assert chapter_of(course, course.task("1.2.2")) == "book/src/more.md#task-122-twice"
    assert chapter_of(course, course.task("1.2.1")) == "book/src/two.md"
    (clone / "book/src/two.md").write_text("## Tasks 1.2.1 and 1.2.2: both\n")
    for task in ("1.2.1", "1.2.2"):
        assert chapter_of(course, course.task(task)) == "book/src/two.md#tasks-121-and-122-both"


# What a graded run says last, and an error that fails many tests once


def test_after_green_what_is_next_and_how_to_compare(grade, written):
    out = grade("--task", "1.1.1", "tests")
    assert "\nnext: 1.2.1 the counter, src/tiny_llm/counter.py:4\n" in out
    assert "\ncompare with the reference: ./pdmw run diff 1.1.1\n" in out
    assert "\ncompare with the reference: ./pdmw run diff 1.1\n" in grade("--day", "1.1", "tests")


def test_a_green_part_of_a_task_is_not_to_be_compared(grade, written):
    out = grade("--task", "1.1.1", "-k", "thrice", "tests")
    assert "\nnext: 1.1.1 twice, src/tiny_llm/sums.py:2\n" in out and "run diff" not in out


def test_after_red_each_task_that_failed_and_where_help_is(grade, written):
    edit(written, SUMS, "3 * x", "4 * x")
    out = grade("--day", "1.1", "tests")
    assert "\ntask 1.1.1: ./pdmw run hint 1.1.1 · book/src/one.md#task-111-twice-a-number\n" in out
    assert "next:" not in out and "run diff" not in out
    assert out.index("test_thrice") < out.index("task 1.1.1: ./pdmw")
    assert "\n./pdmw run explain 1.1.1 names a known mistake" in out
    edit(written, SUMS, "x * n", "x + n + 1")
    assert grade("--day", "1.1", "tests").count("run hint 1.1.1") == 1, "two tests of a task failed"


def test_a_bonus_is_passed_by_unless_its_path_is_taken(grade, written, capsys):
    """Nothing is given for it, and its day doesn't keep a week from being done."""
    edit(written, "course.toml", 'symbols = ["Counter"]', 'symbols = ["Counter"]\nbonus = true')
    edit(written, "course.toml", 'grows = ["twice"]', 'grows = ["twice"]\nbonus = true')
    (written / "book/src/week1-end.md").write_text("# Built\n")
    assert "the week is done: book/src/week1-end.md" in grade("--day", "1.1", "tests")
    assert said(capsys).splitlines() == [
        "next: nothing, the whole path is done; read book/src/last-day.md, or go on with",
        "  ./pdmw run next --path bonus",
        "",
        "optional, nothing later needs them: 1.1.2 a fast sum (C++), 1.2.1 the counter",
        "  (bonus), 1.2.2 twice a counter (bonus)",
    ]
    assert status(capsys)[:2] == ["  1.1  ✓·  One", "  1.2  ··  Two"]
    out = grade("--week", "1", "tests")
    assert "left out, as a bonus that you have not written: 1.2.1, 1.2.2\n" in out and "TODO" not in out
    assert "TODO 1.2.1" in grade("--task", "1.2.1", "tests"), "it is asked for"
    assert main(["next", "--path", "bonus"]) == 0
    assert said(capsys).startswith("next: 1.2.1 the counter ")
    assert "TODO 1.2.1" in grade("--week", "1", "tests")


def test_the_last_day_of_a_week_names_what_was_built(grade, written):
    (written / "src/tiny_llm/counter.py").write_text("class Counter:\n    def step(self): return 1\n")
    line = "the week is done: book/src/week1-end.md shows what you have built\n"
    assert line not in grade("--day", "1.2", "tests"), "there is no such page"
    (written / "book/src/week1-end.md").write_text("# Built\n")
    assert line not in grade("--day", "1.1", "tests")
    assert line not in grade("--task", "1.2.1", "-k", "nothing", "tests")
    out = grade("--day", "1.2", "tests")
    assert line in out and "next: nothing, all Python tasks have passed" in out


def test_on_a_narrow_terminal_the_chapter_has_its_own_line(grade, written, monkeypatch):
    edit(written, SUMS, "3 * x", "4 * x")
    monkeypatch.setattr(recorder, "reporter_width", lambda _: 60)
    out = grade("--day", "1.1", "tests")
    assert "\ntask 1.1.1: ./pdmw run hint 1.1.1\nbook/src/one.md#task-111-twice-a-number\n" in out


# The state of a task, from the record and from the code as it is


def hash_of(clone, task):
    course = load_course(clone)
    return TaskSources(course).hash_of(course.task(task))


def passed(clone, task="1.1.1"):
    return Outcome(passed=2, failed=0, todo=0, ran_all=True, source=hash_of(clone, task), at="now")


def state(clone, outcome=None, task="1.1.1"):
    course = load_course(clone)
    return standing(course, Record({task: outcome} if outcome else {})).state(course.task(task))


def test_without_a_record_the_code_tells(clone):
    assert state(clone) is State.TODO
    sums = clone / "src/tiny_llm/sums.py"
    sums.write_text(sums.read_text().replace('raise NotImplementedError("task 1.1.1")', "return 4", 1))
    assert state(clone) is State.TODO, "one of its functions is written"
    sums.write_text(ANSWER)
    assert state(clone) is State.WRITTEN
    sums.unlink()
    assert state(clone) is State.TODO


def test_a_kernel_is_written_when_its_part_is(clone):
    assert state(clone, task="1.1.2") is State.TODO
    (clone / "src/tiny_llm/kernels/sum.cpp").write_text(
        KERNEL.replace('throw std::runtime_error("task 1.1.2")', "return 0")
    )
    assert state(clone, task="1.1.2") is State.WRITTEN


def test_a_record_tells_passed_from_failing(written):
    outcome = passed(written)
    assert state(written, outcome) is State.PASSED
    assert state(written, replace(outcome, failed=1)) is State.FAILING
    assert state(written, replace(outcome, ran_all=False)) is State.WRITTEN
    assert state(written, replace(outcome, todo=1)) is State.WRITTEN


@pytest.mark.parametrize(
    ("old", "new"),
    [("3 * x", "x * 3"), ("x * n", "n * x"), ("of: str", "on: str")],
    ids=["body", "private helper", "signature"],
)
def test_what_changed_since_it_passed_is_told(written, old, new):
    outcome = passed(written)
    path = written / "src/tiny_llm/sums.py"
    path.write_text(ANSWER.replace(old, new))
    assert state(written, outcome) is State.CHANGED


@pytest.mark.parametrize(
    "text",
    [
        ANSWER + "\ndef other():\n    return 1\n",
        ANSWER.replace("return 3", "# why\n    return 3"),
        "\n\n" + ANSWER,
    ],
    ids=["another function", "a comment", "blank lines"],
)
def test_what_does_not_answer_a_task_does_not_change_it(written, text):
    outcome = passed(written)
    (written / "src/tiny_llm/sums.py").write_text(text)
    assert state(written, outcome) is State.PASSED


def test_a_passed_task_that_is_a_stub_again_is_to_do(clone):
    assert state(clone, passed(clone)) is State.TODO


def test_a_file_that_does_not_parse_is_no_crash(written):
    outcome = passed(written)
    (written / "src/tiny_llm/sums.py").write_text("def twice(:\n")
    assert state(written, outcome) is State.CHANGED


def test_a_task_that_only_extends_is_to_do_until_it_was_graded(written):
    assert state(written, task="1.2.2") is State.TODO
    outcome = passed(written, "1.2.2")
    assert state(written, outcome, "1.2.2") is State.PASSED
    (written / "src/tiny_llm/sums.py").write_text(ANSWER.replace("(x, 2)", "(x, 2) + 0"))
    assert state(written, outcome, "1.2.2") is State.CHANGED


def test_the_next_task_is_the_first_in_python_that_is_open(written):
    course = load_course(written)
    now = standing(course, Record({"1.1.1": passed(written)}))
    assert now.next_task is course.task("1.2.1")
    assert now.passed_by == [course.task("1.1.2")]
    assert now.is_passed(course.day("1.1")) and not now.is_passed(course.day("1.2"))
    assert now.num_passed == 1
    (written / "src/tiny_llm/sums.py").write_text(ANSWER.replace("3 * x", "4 * x"))
    now = standing(course, Record({"1.1.1": replace(passed(written), source="before")}))
    assert now.changed == [course.task("1.1.1")]
    assert now.next_task is course.task("1.2.1"), "what passed once is not gone back to"
    assert not now.is_passed(course.day("1.1"))


def test_a_method_that_a_later_task_writes_is_its_own(clone):
    manifest, counter = clone / "course.toml", clone / "src/tiny_llm/counter.py"
    text = manifest.read_text()
    manifest.write_text(text.replace('grows = ["twice"]', 'also = ["counter.py:Counter.step"]\ngrows = []'))
    before, _, later = counter.read_text().rpartition("1.2.1")
    counter.write_text(f"{before}1.2.2{later}".replace('raise NotImplementedError("task 1.2.1")', "pass"))
    outcome = passed(clone, "1.2.1")
    assert state(clone, outcome, "1.2.1") is State.PASSED, "a stub of a later task is left in its class"
    assert state(clone, task="1.2.2") is State.TODO
    counter.write_text(counter.read_text().replace('raise NotImplementedError("task 1.2.2")', "return 1"))
    assert state(clone, outcome, "1.2.1") is State.PASSED, "its own code is what passed"
    assert state(clone, task="1.2.2") is State.WRITTEN


# `status`, and the words it is known by in a terminal of 80 columns


def status(capsys):
    capsys.readouterr()
    assert main(["status"]) == 0
    return capsys.readouterr().out.splitlines()


def test_it_needs_no_record(clone, capsys):
    first, second, _, legend, _, count, after = status(capsys)
    assert (first, second) == ("→ 1.1  ○·  One", "  1.2  ○○  Two")
    assert legend == "✓ passed  ✗ failing  ◐ written, not graded  ○ to do  · optional (C++, bonus)"
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
        "+ passed  x failing  ~ written, not graded  o to do  . optional (C++, bonus)",
    ]


def test_the_course_fits_80_columns():
    course = load_course()
    lines = [line.plain for line in status_lines(standing(course, Record()))]
    assert max(map(len, lines)) <= 80
    assert sum(line[2:5] in {day.id for day in course.days} for line in lines) == len(course.days)


def test_brief_shows_the_first_failure_and_names_the_others(grade, clone):
    wrong = ANSWER.replace("3 * x", "4 * x").replace("x * n", "x * n + 1")
    (clone / "src/tiny_llm/sums.py").write_text(wrong)
    out = grade("tests", "--task", "1.1.1", "--brief", "--tb=short", "-q")
    assert "_ test_twice _" in out and "_ test_thrice _" not in out
    assert "and 1 more test failed: test_thrice\n" in out and "2 failed" in out


def test_what_is_missing_of_earlier_days_is_one_line(grade, clone):
    (clone / "tests/week_1/test_day_2.py").write_text(
        "import pytest\n"
        + "".join(
            f'@pytest.mark.task("1.2.1")\ndef test_{i}(llm):\n    llm.{call}\n'
            for i, call in enumerate(("twice(1)", "thrice(1)", "Counter()"))
        )
    )
    out = grade("tests", "--day", "1.2")
    assert out.count("TODO ") == 1 and "TODO 1.2.1: write" in out
    assert "of earlier days: 1.1.1 to do; ./pdmw run stubs --fill-before 1.2 gives them\n" in out


def test_a_task_that_failed_before_is_named_when_a_later_one_fails(grade, clone):
    (clone / "src/tiny_llm/sums.py").write_text(ANSWER.replace("3 * x", "4 * x"))
    grade("tests", "--task", "1.1.1")
    edit(clone, "src/tiny_llm/counter.py", 'raise NotImplementedError("task 1.2.1")\n\n', "pass\n\n")
    edit(clone, "src/tiny_llm/counter.py", 'raise NotImplementedError("task 1.2.1")', "return 2")
    assert "of earlier days, 1.1.1 failed when the tests ran last\n" in grade("tests", "--task", "1.2.1")


def test_the_short_path_gives_what_it_leaves_out(untouched, capsys):
    """When it is reached, around what is written; and it stays the path until another is named."""
    edit(untouched, "course.toml", 'chapter = "one.md"', 'chapter = "one.md"\nshort = true')
    edit(untouched, "course.toml", 'chapter = "three.md"', 'chapter = "three.md"\nshort = true')
    path = untouched / "src/tiny_llm/sums.py"

    def next_of(*flags):
        capsys.readouterr()
        assert main(["next", *flags]) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert next_of("--path", "short").startswith("next: 1.1.1 ")
    assert '"task 1.2.1"' in path.read_text()
    path.write_text(path.read_text().replace('raise NotImplementedError("task 1.1.1")', "self.parts = []"))
    source = TaskSources(load_course(untouched)).hash_of(load_course(untouched).task("1.1.1"))
    passed = Outcome(1, 0, 0, ran_all=True, source=source, at="now")
    save_record(untouched, load_record(untouched)[0].with_outcomes({"1.1.1": passed}))
    assert next_of().startswith("next: 2.1.2 ")
    assert "self.parts = []" in path.read_text() and '"task 1.2.1"' not in path.read_text()
    for outcome in (None, Outcome(0, 1, 0, ran_all=True, source="of before", at="now")):
        main(["reset", "1.2.1"])
        save_record(untouched, load_record(untouched)[0].with_outcomes({"1.2.1": outcome} if outcome else {}))
        assert next_of().startswith("next: 1.2.1 ") and '"task 1.2.1"' in path.read_text(), "taken back"
    main(["stubs", "--fill-before", "2.1"])
    assert next_of("--path", "whole").startswith("next: 2.1.2 "), "what was given is not to do"
