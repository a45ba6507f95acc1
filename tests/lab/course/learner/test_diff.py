"""`diff`: an answer beside the reference's, after it passes."""

import pytest
from tests.helpers.trees import course_files

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner import diff
from tiny_llm_lab.course.learner.diff import answers
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.types import UserError

ANSWER = course_files("desk")["src/tiny_llm_ref/sums.py"]
OWN = ANSWER.replace("return _product(x, _TIMES)", "return _half(x) + _half(x)").replace(
    "\n\nclass Total", "\n\ndef _half(x):\n    return x\n\n\nclass Total"
)


@pytest.fixture
def written(untouched):
    (untouched / "src/tiny_llm/sums.py").write_text(OWN)
    return untouched


def rendered(mine, reference, width):
    return [line.plain for line in diff.diff_lines(mine, reference, width)]


def test_what_does_not_pass_is_shown_only_to_those_who_peek(written, capsys):
    (written / "tests/week_1/test_day_1.py").write_text(
        'import pytest\n@pytest.mark.task("1.1.1")\ndef test_it(llm):\n    assert llm.twice(2) == 5\n'
    )
    assert main(["diff", "1.1.1"]) == 2
    out, err = capsys.readouterr()
    assert "1.1.1 does not pass yet: `./pdmw run test --task 1.1.1` says why; --peek" in err
    assert "_half" not in out
    assert main(["diff", "1.1.1", "--peek"]) == 0
    out, err = capsys.readouterr()
    assert "-     return _half(x) + _half(x)\n+     return _product(x, _TIMES)\n" in out
    assert err == ("--peek: this task does not pass yet, and its answer leaves you nothing to find\n")


def test_after_passing_helpers_of_both_sides_are_shown(written, capsys):
    assert main(["diff", "1.1.1"]) == 0, "its tests were run for this"
    out, err = capsys.readouterr()
    assert not err
    assert "\n── _TIMES · sums.py · the same\n  _TIMES = 2\n" in out
    assert "\n── _product · sums.py · the same\n" in out
    assert "\n── _half · sums.py · only in yours (-)\n- def _half(x):\n-     return x\n" in out
    assert out.index("── twice") < out.index("── _half") < out.index("── Total.__init__")
    assert out.endswith("\nlines of code: yours 9, the reference's 7\n")
    assert "Total.add" not in out


def test_a_day_shows_what_passes_and_names_the_rest(written):
    tasks = load_course(written).tasks
    first = {"1.1.1"}

    def is_passed(task):
        return task.id in first

    assert diff.chosen(tasks, is_passed, peek=False) == (
        [tasks[0]],
        [f"{task.id} {task.title}: does not pass yet" for task in tasks[1:]],
    )
    assert diff.chosen(tasks, is_passed, peek=True) == (list(tasks), [])
    first.clear()
    with pytest.raises(UserError, match="no task of this day passes yet"):
        diff.chosen(tasks, is_passed, peek=False)


def test_kernels_and_what_a_task_extends(written, capsys):
    assert main(["diff", "2.1.1", "--peek"]) == 0
    out = capsys.readouterr().out
    assert '- throw std::runtime_error("task 2.1.1");\n+ return -n;\n' in out
    assert "it also extends twice, Total: ./pdmw run diff 1.1.1 or 1.2.1\n" in out
    assert "final form" not in out, "nothing extends it"
    main(["diff", "1.1.1", "--peek"])
    out = capsys.readouterr().out
    assert "the reference shows the final form, with the additions of 2.1.1, 2.1.2\n" in out
    main(["diff", "2.1.2", "--peek"])
    assert "── twice · sums.py" in capsys.readouterr().out, "nothing is its own: what it extends is shown"


def test_every_task_of_the_course_has_an_answer():
    course = load_course()
    for task in course.tasks:
        found = answers(course, task)
        assert any(part.reference.strip() for part in found), task.id


def test_lines_of_one_side_are_marked():
    assert rendered("a\nb\nc\nd\n", "a\nB\nc\nd\ne\n", 80) == ["  a", "- b", "+ B", "  c", "  d", "+ e"]


def test_code_that_is_too_wide_goes_on_below_its_own_indent():
    call = "    answer = combine(first_operand, second_operand, third_operand)"
    assert rendered(f"{call}\n", "    pass\n", 60) == [
        "-     answer = combine(first_operand, second_operand,",
        "          third_operand)",
        "+     pass",
    ]


def test_a_file_that_is_not_python_is_one_line(untouched, capsys):
    (untouched / "src/tiny_llm/sums.py").write_text("def broken(:\n")
    assert main(["diff", "1.1.1", "--peek"]) == 2
    assert "src/tiny_llm/sums.py:1 is not valid Python" in capsys.readouterr().err
