"""--borrow: the reference's files in the learner's package, until these are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.grading.run_tests import environment

Capture = pytest.CaptureFixture[str]
FILES = {
    "tiny_llm/__init__.py": "from .use import use\n",
    "tiny_llm/kinds.py": "class Kind:\n    pass\n",
    "tiny_llm/parts/__init__.py": "",
    "tiny_llm/parts/make.py": 'def make():\n    raise NotImplementedError("task 1.1.1")\n',
    "tiny_llm/parts/done.py": 'def done():\n    return "yours"\n',
    "tiny_llm/use.py": "from .kinds import Kind\nfrom .parts import done, make\n"
    "def use():\n    return isinstance(make.make(), Kind), make.__name__, make.__package__, done.done()\n",
    "tiny_llm_ref/__init__.py": "raise ImportError('of the reference')\n",
    "tiny_llm_ref/parts/__init__.py": "",
    "tiny_llm_ref/parts/make.py": "from ..kinds import Kind\ndef make():\n    return Kind()\n",
    "tiny_llm_ref/parts/done.py": 'def done():\n    return "the reference"\n',
}


def ran(root: Path, code: str) -> str:
    """What a program prints that finds the packages of `root` before all others."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = f"import sys\nsys.path.insert(0, {str(root)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", own + code], env=environment(), capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_borrowed_file_is_one_of_the_learners_package(tmp_path: Path) -> None:
    said = ran(
        tmp_path,
        "from tiny_llm_lab.course.borrowing import borrow_files\n"
        "borrow_files(['parts/make.py', 'parts/done.py'], 'mine')\n"
        "import tiny_llm\nprint(tiny_llm.use(), 'tiny_llm_ref' in sys.modules)\n",
    )
    assert "(True, 'tiny_llm.parts.make', 'tiny_llm.parts', 'yours') False\n" in said
    assert "--borrow parts/make.py: we use the reference's file\n" in said
    assert "--borrow parts/done.py: you have written yours, so we use it\n" in said


def test_what_is_loaded_already_is_not_borrowed_silently(tmp_path: Path) -> None:
    said = ran(
        tmp_path,
        "import tiny_llm\nfrom tiny_llm_lab.course.borrowing import borrow_files\n"
        "try:\n    borrow_files(['parts/make.py'], 'mine')\nexcept Exception as error:\n    print(error)\n",
    )
    assert "tiny_llm.parts.make is already imported: borrow before a solution is loaded" in said


@pytest.mark.parametrize("command", ["main", "trace"])
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--borrow", "layers/basics.py"], "--borrow completes your own package: use --solution"),
        (["--solution", "mine", "--borrow", "layers/basic.py"], "did you mean layers/basics.py?"),
        (["--solution", "mine", "--borrow", "x"], "choose one such as layers/attention.py"),
        (["--solution", "mine", "--borrow", "kernels/linear.cpp"], "all C++ and Metal compiles from one"),
        (["--solution", "mine", "--borrow", "layers/__init__.py"], "the reference does not have this file"),
    ],
)
def test_bad_input_is_one_line(command: str, args: list[str], says: str, capsys: Capture) -> None:
    assert main([command, *args]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


@pytest.mark.parametrize("given", [["--borrow", "layers/basics.py"], ["--borrow=layers/basics.py"]])
def test_tests_grade_nothing_that_is_borrowed(
    given: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")  # or a wrong version would become pytest here
    assert main(["test", "--day", "1.1", *given]) == 2
    assert "test grades your own files: leave out --borrow" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["main", "batch-main", "trace", "chat", "serve", "simulate"])
def test_commands_that_run_a_solution_borrow(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    assert "--borrow FILE" in capsys.readouterr().out
