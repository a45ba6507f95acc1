"""The state of a task, from the record and from the code as it is."""

from dataclasses import replace

import pytest
from tests.lab.course.learner.small_course import ANSWER, KERNEL

from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import Outcome, Record
from tiny_llm_lab.course.record.standing import State, standing
from tiny_llm_lab.course.record.task_sources import TaskSources


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
