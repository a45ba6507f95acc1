"""The commands of a learner where a later task adds a parameter to a function of an earlier one."""

import pytest
from tests.helpers.trees import course_files, edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.exercises import growths_of
from tiny_llm_lab.course.learner.next_task import _task_lines
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import TaskSources
from tiny_llm_lab.course.record.standing import open_desk

pytest_plugins = ["pytester"]
ANSWER, SMALL_ANSWER = (course_files(name)["src/tiny_llm_ref/sums.py"] for name in ("desk", "small"))
HEAD = "def twice(x: int) -> int:"
GROWN = "def twice(x: int, n: int = 2) -> int:"
STUB = '    """Twice x."""\n    raise NotImplementedError("task 1.1.1")\n'


@pytest.fixture
def grown(untouched):
    """The clone whose reference has a parameter that task 2.1.2 adds to `twice`."""
    old = 'title = "twice more"\n'
    edit(untouched, "course.toml", old, old + 'adds = ["twice(n)"]\n')
    answer = ANSWER.replace(HEAD, GROWN)
    (untouched / "src/tiny_llm_ref/sums.py").write_text(answer)
    return untouched


def test_reset_gives_the_signature_of_the_tasks_own_day(grown):
    mine = grown / "src/tiny_llm/sums.py"
    mine.write_text(ANSWER.replace(HEAD, GROWN))
    assert main(["reset", "1.1.1"]) == 0
    assert f"{HEAD}\n{STUB}" in mine.read_text()


def test_an_answer_comes_with_the_signature_that_it_is_written_for(grown):
    assert main(["stubs", "--fill-before", "2.1"]) == 0
    assert GROWN in (grown / "src/tiny_llm/sums.py").read_text()


def test_a_task_is_written_when_its_parameters_are_there(clone):
    package, listed, grows = clone / "src/tiny_llm", clone / "course.toml", 'grows = ["twice"]'
    listed.write_text(listed.read_text().replace(grows, f'{grows}\nadds = ["twice(n)"]'))
    (package / "sums.py").write_text(SMALL_ANSWER.replace("_times(x, 2)", "2 * x"))
    course = load_course(clone)
    assert [each.parameter for each in growths_of(course.task("1.2.2"))] == ["n"]
    assert not TaskSources(course).is_written(course.task("1.2.2"))
    said = "\n".join(_task_lines(open_desk(), course.task("1.2.2"), 80))
    assert "  it extends twice\n  new parameters: twice(n)\n" in said
    text = (package / "sums.py").read_text()
    (package / "sums.py").write_text(text.replace('of: str = "a")', 'of: str = "a", n: int = 2)'))
    assert TaskSources(course).is_written(course.task("1.2.2"))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("", "it extends twice, thrice\n  about 9 lines"),
        ("_times(x, 2)", "it extends thrice\n  given, with what it adds: twice\n  fewer than 9 lines"),
        ("_times(x, 2) 3 * x", "\n  given, with what it adds: twice, thrice\n  fewer than 9 lines"),
    ],
)
def test_what_was_given_is_not_left_to_extend(own, says, clone):
    """The given answers are final, so that a task which extends them comes nearly finished."""
    edit(clone, "course.toml", 'grows = ["twice"]', 'grows = ["twice", "thrice"]\nlines = 9')
    text = SMALL_ANSWER
    for given in ("_times(x, 2)", "3 * x"):
        text = text if given in own else text.replace(given, "5")
    (clone / "src/tiny_llm/sums.py").write_text(text)
    assert says in "\n".join(_task_lines(open_desk(), load_course(clone).task("1.2.2"), 80))


def test_a_parameter_that_an_earlier_day_adds_is_to_be_written(grade, clone):
    """`stubs --fill-before` adds none to your own functions, so it is not the cure."""
    day = '[[day]]\nid = "1.3"\ntitle = "Three"\nchapter = "two.md"\n'
    task = '[[task]]\nid = "1.3.1"\ntitle = "z"\nfile = "counter.py"\nsymbols = []\ngrows = ["Counter"]\n'
    edit(clone, "course.toml", '[[task]]\nid = "1.1.1"', f'{day}{task}[[task]]\nid = "1.1.1"')
    edit(clone, "course.toml", 'grows = ["twice"]\n', 'grows = ["twice"]\nadds = ["twice(more)"]\n')
    (clone / "src/tiny_llm/sums.py").write_text(SMALL_ANSWER)
    test = '@pytest.mark.task("1.3.1")\ndef test_more(llm):\n    llm.twice(1, more=2)\n'
    (clone / "tests/week_1/test_day_3.py").write_text(f"import pytest\n{test}")
    out = grade("tests", "--day", "1.3")
    assert "TODO 1.2.2: write the parameter `more` of src/tiny_llm/sums.py:2 twice (1 test)" in out
    assert "of earlier days" not in out
