"""The pytest plugin on a course of two days: outcomes, selection, exit codes."""

import pytest
from tests.helpers.trees import edit
from tests.lab.course.conftest import grading

from tiny_llm_lab.runtime import native

pytest_plugins = ["pytester"]
DAY = "tests/week_1/test_day_1.py"


@pytest.fixture
def grade(tree, pytester, monkeypatch):
    run = grading(tree, pytester, monkeypatch)
    return lambda *args: run("tests", *args)


def test_an_unwritten_task_is_todo_and_not_an_error(grade):
    done = grade()
    assert done.returncode == 1
    assert "○○" in done.stdout
    assert "2 todo" in done.stdout
    assert "TODO 1.1.1: write src/tiny_llm/sums.py:3 twice (1 test)" in done.stdout
    # Raised in a fixture, before the test itself began.
    assert "TODO 1.2.1: write src/tiny_llm/sums.py:7 Counter.__init__ (1 test)" in done.stdout
    assert "Traceback" not in done.stdout
    assert "FAILURES" not in done.stdout
    assert "ERRORS" not in done.stdout


def test_the_header_says_whose_code_is_graded(grade, tree):
    assert f"grading: mine = {tree / 'src' / 'tiny_llm'}\n" in grade().stdout
    assert f"grading: ref = {tree / 'src' / 'tiny_llm_ref'}\n" in grade("--solution", "ref").stdout


@pytest.mark.parametrize("options", [["--week", "1", "--day", "2"], ["--day", "1.2"], ["--task", "1.2.1"]])
def test_a_day_or_task_selects_its_own_tests(grade, options):
    done = grade("--solution", "ref", "-v", *options)
    assert done.returncode == 0
    assert "test_counter PASSED" in done.stdout
    assert "1 passed, 2 deselected" in done.stdout


def test_a_week_leaves_out_the_tests_of_the_lab(grade):
    assert "2 passed, 1 deselected" in grade("--solution", "ref", "--week", "1").stdout


def test_a_given_answer_that_passes_a_later_parameter_is_no_mistake_of_the_course(grade, tree):
    owned = 'symbols = ["Counter"]'
    edit(tree, "course.toml", owned, f'{owned}\ngrows = ["twice"]\nadds = ["twice(n)"]')
    mine = "def twice(x):\n    return 2 * x\n\ndef four(x):\n    return twice(x, 4)\n"
    (tree / "src/tiny_llm/sums.py").write_text(mine + "\nclass Counter:\n    pass\n")
    edit(tree, DAY, "assert llm.twice(2) == 4", "from tiny_llm.sums import four; four(2)")
    said = grade("--task", "1.1.1").stdout
    assert "mistake of the course" not in said
    assert "A given answer passes the parameter `n` of src/tiny_llm/sums.py:1 twice, which your" in said
    assert "does not have yet (task 1.2.1): add the parameter, and ignore it until then." in said


def test_what_did_not_raise_is_named(grade, tree):
    call = "with pytest.raises(ValueError):\n        llm.twice(\n            2)"
    edit(tree, DAY, "assert llm.twice(2) == 4", call)
    said = grade("--solution", "ref", "--task", "1.1.1", "--tb=short").stdout
    assert "Failed: DID NOT RAISE ValueError: llm.twice( 2)\n" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--week", "9"], "there is no week 9: the course has 1"),
        (["--week", "1", "--day", "9"], "there is no day '1.9': the course has 1.1 to 1.2"),
        (["--day", "2"], "write --week 2 --day 2"),
    ],
)
def test_what_does_not_exist_is_one_line(grade, options, says):
    done = grade(*options)
    assert done.returncode == 4
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_cannot_be_imported_is_told_once(grade, tree):
    (tree / "src/tiny_llm/sums.py").write_text("def twice(x:\n")
    done = grade()
    assert done.returncode == 1
    assert "cannot import tiny_llm" in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("SyntaxError") == 1


def test_ctrl_c_has_the_exit_code_of_every_command(grade, tree):
    edit(tree, DAY, "assert llm.twice(2) == 4", "raise KeyboardInterrupt")
    done = grade("--solution", "ref")
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stdout
    edit(tree, DAY, "raise KeyboardInterrupt", "pass\n\nraise ValueError")
    assert grade("--solution", "ref").returncode == 2, "an error of collection"


@pytest.mark.parametrize("name", ["twice.cpp", "twice.h"])
def test_a_cut_kernel_is_todo_at_its_place(name, grade, tree):
    kernels = tree / "src/tiny_llm/kernels"
    kernels.mkdir()
    (kernels / name).write_text('{\n  throw std::runtime_error("task 1.1.1");\n}\n')
    edit(tree, DAY, "assert llm.twice(2) == 4", 'raise RuntimeError("task 1.1.1")')
    assert f"TODO 1.1.1: write src/tiny_llm/kernels/{name}:2 (1 test)" in grade("--day", "1.1").stdout


@pytest.mark.parametrize("error", ["CompileError", "NoCompilerError"])
def test_the_compilers_words_are_said_once(error, grade, tree):
    build = "tiny_llm_lab.runtime.native.compiling.build"
    raised = f"from {build} import {error}\n    raise {error}('the x:1: error: y')"
    edit(tree, DAY, "assert llm.twice(2) == 4", raised)
    path = tree / DAY
    again = f'\n@pytest.mark.task("1.1.1")\ndef test_again(llm):\n    {raised}\n'
    path.write_text(path.read_text() + again)
    said = grade("--day", "1.1").stdout
    assert f"\n{DAY} CC" in said
    assert "2 not compiled" in said and "failed" not in said
    assert " the C++ does not compile =" in said
    assert said.count("\nthe x:1: error: y\n") == 1
    assert "task 1.1.1: ./pdmw run hint 1.1.1" in said


def test_a_long_test_runs_when_asked_for(grade, tree):
    edit(tree, DAY, "def test_counter", "@pytest.mark.long\ndef test_counter")
    done = grade("--solution", "ref")
    assert "2 passed, 1 deselected" in done.stdout
    assert "\nskipped 1 long tests: --full runs them\n" in done.stdout
    assert "3 passed" in grade("--solution", "ref", "--full").stdout
    assert "1 passed" in grade("--solution", "ref", "--task", "1.2.1").stdout


def test_the_set_of_operators_is_a_flag(grade, tree, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "off")
    found = f"import os\n    assert os.environ['{native.VARIABLE}'] == 'mlx'"
    edit(tree, DAY, "def test_of_the_lab():\n    pass", f"def test_of_the_lab():\n    {found}")
    assert grade("--solution", "ref").returncode == 1
    assert grade("--solution", "ref", "--kernels", "mlx").returncode == 0
