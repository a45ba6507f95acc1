"""`test` and `test-ref`: which files pytest is given, and what is handed on to it."""

import os

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.grading.run_tests import BRIEF
from tiny_llm_lab.course.manifest import load_course

PARALLEL = ["-n", "auto", "--dist", "worksteal"]
ALONE = ["-p", "no:xdist", "-p", "no:xdist.looponfail"]
BARE = [*ALONE, "-p", "no:hypothesispytest"]
SHORT = [*BARE, *BRIEF]


class ReplacedError(Exception):
    """os.execve does not return; neither does what stands for it here."""


@pytest.fixture
def environments():
    """What pytest was started with, once for each command line that was asked."""
    return []


@pytest.fixture
def ask(environments, monkeypatch):
    """The arguments that pytest gets behind --solution, for a command line."""
    asked = []

    def execve(program, command, environment):
        assert program == command[0]
        assert environment["PYTHONHASHSEED"] == "0", "sets in messages would change their order"
        asked.append(command)
        environments.append(environment)
        raise ReplacedError

    def chdir(path):
        assert path == load_course().root

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "chdir", chdir)

    def of(*argv):
        with pytest.raises(ReplacedError):
            main(list(argv))
        command = asked.pop()
        return command[command.index("--solution") + 1 :]

    return of


def test_a_day_is_collected_from_its_own_files(ask):
    assert ask("test", "--week", "1", "--day", "1") == [
        *("mine", "--week", "1", "--day", "1", *SHORT),
        "tests/week_1/test_day_1.py",
    ]
    found = ask("test-ref", "--day", "3.4")
    assert found[:3] == ["ref", "--day", "3.4"]
    assert "tests/week_3/test_day_4_budget.py" in found
    assert "tests/week_3/test_day_4_line.py" in found
    assert found[3:9] == BARE
    assert all(path.startswith("tests/week_3/test_day_4") for path in found[9:])


def test_several_days_run_in_several_processes(ask):
    assert ask("test-ref") == ["ref", *PARALLEL]
    assert ask("test")[1:5] == PARALLEL
    assert ask("test", "--week", "1")[3:7] == PARALLEL
    assert "-n" not in ask("test", "--day", "1.1")
    assert "-n" not in ask("test", "--task", "1.1.1")
    assert ask("test-ref", "-n0") == ["ref", "-n0"]
    assert ask("test-ref", "--pdb") == ["ref", *ALONE, "--pdb"]
    assert ask("test", "--day", "1.1", "-n2")[3:] == [*SHORT[4:], "-n2", "tests/week_1/test_day_1.py"]
    assert ask("test-ref", "--full") == ["ref", "--full", *PARALLEL]
    assert ask("test-ref", "--kernels", "mlx") == ["ref", "--kernels", "mlx", *PARALLEL]


def test_bytecode_of_the_reference_is_kept_where_the_tree_gets_none(ask, environments, monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    for variable in ("1", ""):
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", variable)
        for command in ("test-ref", "test"):
            ask(command)
    found = [(env["PYTHONDONTWRITEBYTECODE"], env.get("PYTHONPYCACHEPREFIX")) for env in environments]
    assert found == [("", f"{tmp_path}/bytecode"), ("1", None), ("", None), ("", None)]


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_other_arguments_are_pytests(ask, dashes):
    given = ("-k", "book and not x", "-x")
    assert ask("test-ref", *dashes, *given) == ["ref", *PARALLEL, *given]
    found = ask("test", "--task", "1.1.1", *dashes, "-q", "--durations=3")
    assert found == ["mine", "--task", "1.1.1", *SHORT, "-q", "--durations=3", "tests/week_1/test_day_1.py"]
    found = ask("test", "--task", "1.1.1", *dashes, "-v")
    assert found == ["mine", "--task", "1.1.1", *BARE, "-v", "tests/week_1/test_day_1.py"]


def test_a_day_or_task_needs_no_flag(ask):
    assert ask("test", "1.1.2") == ask("test", "--task", "1.1.2")
    assert ask("test", "2.7", "-k", "chunk") == ask("test", "--day", "2.7", "-k", "chunk")
    assert ask("test-ref", "-k", "2.7")[-2:] == ["-k", "2.7"]


def test_a_file_that_is_named_is_all_that_is_collected(ask):
    name = "tests/lab/test_step_budget.py"
    assert ask("test-ref", name) == ["ref", *ALONE, name]
    found = ask("test-ref", "--day", "1.1", f"{name}::test_x")
    assert found == ["ref", "--day", "1.1", *ALONE, f"{name}::test_x"]
    assert ask("test-ref", "tests/kernels") == ["ref", *PARALLEL, "tests/kernels"]


def test_the_tests_of_a_task_stand_in_the_files_of_its_day():
    """`test --day` collects nothing else."""
    course = load_course()
    tests = course.root / "tests"
    paths = (path for path in tests.rglob("test_*.py") if tests / "lab" not in path.parents)
    texts = {path.relative_to(course.root).as_posix(): path.read_text() for path in paths}
    strays = [
        f"{path}: a test of task {task.id}"
        for task in course.tasks
        for path, text in texts.items()
        if f'mark.task("{task.id}")' in text and path not in course.test_files([task])
    ]
    assert strays == []
    assert all(course.test_files([task]) for task in course.tasks)
