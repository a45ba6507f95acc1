"""The starter: what is cut, what stays, and that a learner's work is never lost."""

import argparse
import textwrap

import pytest
from tests.helpers.trees import course_files, edit

from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.source import cut_kernel, starter_source
from tiny_llm_lab.course.starter import stubs
from tiny_llm_lab.types import UserError

ANSWER, STARTER, KERNEL = course_files("starter").values()
TASK_OF = {"Thing.__init__": "1.1.1", "Thing.area": "1.1.2", "run": "1.2.1"}


def test_public_names_stay_and_answers_go():
    assert starter_source(ANSWER, TASK_OF) == STARTER


def test_kernels_are_cut_between_their_comments():
    assert cut_kernel(KERNEL, is_metal=False) == textwrap.dedent("""\
        #include "x.h"
        void matmul(int n) {
          // BEGIN task 2.2.2: the inner loop
          throw std::runtime_error("task 2.2.2");
          // END task 2.2.2
        }
        // BEGIN task 2.4.1
        throw std::runtime_error("task 2.4.1");
        // END task 2.4.1
        """)
    metal = cut_kernel(KERNEL, is_metal=True)
    assert '#error "task 2.2.2"\n' in metal
    assert cut_kernel(metal, is_metal=True) == metal
    assert "int y;" in cut_kernel(KERNEL, is_metal=True, cut={"2.2.2"}.__contains__)


@pytest.fixture
def repository(tree, monkeypatch):
    """The small course as the one that the command works on."""
    monkeypatch.setattr(stubs, "load_course", lambda: load_course(tree))
    return tree


def run(*, check=False, force=False):
    return stubs.run(argparse.Namespace(command="stubs", check=check, force=force, fill_before=None))


def test_check_lists_what_is_stale(repository, capsys):
    assert run() == 0
    assert run(check=True) == 0
    edit(repository, "src/tiny_llm_ref/sums.py", "def twice(x):", "def twice(x, y=1):")
    assert run(check=True) == 1
    assert "src/tiny_llm/sums.py is stale" in capsys.readouterr().err
    assert run() == 0
    assert run(check=True) == 0


def test_a_learners_work_is_replaced_only_by_force_and_kept(repository):
    run()
    mine = repository / "src/tiny_llm/sums.py"
    work = mine.read_text().replace('raise NotImplementedError("task 1.1.1")', "return x + x")
    mine.write_text(work)
    with pytest.raises(UserError, match=r"sums\.py .* has your edits"):
        run()
    assert mine.read_text() == work
    assert run(force=True) == 0
    assert "return x + x" not in mine.read_text()
    mine.write_text("# later work\nx = 1\n")
    assert run(force=True) == 0
    assert mine.with_name("sums.py.backup1").read_text() == work
    assert mine.with_name("sums.py.backup2").read_text() == "# later work\nx = 1\n"


@pytest.mark.parametrize(
    "work", ["import math\n", "STEP = 64\n", "def mine():\n    return 1\n", "def broken(:\n"]
)
def test_any_line_of_code_is_a_learners_work(repository, work):
    run()
    mine = repository / "src/tiny_llm/sums.py"
    mine.write_text(mine.read_text() + work)
    assert not stubs.is_untouched(mine, stubs.starter(load_course(repository))["sums.py"])


def test_a_file_that_left_the_reference_leaves_the_starter(repository):
    run()
    old = repository / "src/tiny_llm/old.py"
    old.write_text('def f():\n    raise NotImplementedError("task 1.1.1")\n')
    own = repository / "src/tiny_llm/my_notes.py"
    own.write_text("def f():\n    return 1\n")
    assert run() == 0
    assert not old.exists()
    assert old.with_name("old.py.backup1").exists()
    assert own.exists()


@pytest.mark.parametrize("text", ["print(6 * 7)\n", "class Mine:\n    size: int = 3\n", "# later\n", ""])
def test_a_file_without_functions_that_was_never_generated_stays(repository, text):
    run()
    own = repository / "src/tiny_llm/my_notes.py"
    own.write_text(text)
    assert run() == 0
    assert own.read_text() == text


KERNEL_FILE = "kernels/matmul.cpp"
NOTES = [
    ("sums.py", "\n\nclass Mine:\n    size: int = 3\n"),
    ("sums.py", "# 2 * x is x + x\n"),
    ("fixed.py", "def mine():\n    return 1\n"),
    (KERNEL_FILE, "// four at a time\n"),
    (KERNEL_FILE, "struct Tile { int rows; };\n"),
]


@pytest.mark.parametrize(("name", "note"), NOTES)
def test_what_a_learner_added_outside_of_functions_is_in_a_backup(repository, name, note, capsys):
    (repository / "course.toml").write_text(GIVEN + (repository / "course.toml").read_text())
    (repository / "src/tiny_llm_ref/fixed.py").write_text("def half(x):\n    return x / 2\n")
    (repository / "src/tiny_llm_ref/kernels").mkdir()
    (repository / f"src/tiny_llm_ref/{KERNEL_FILE}").write_text(KERNEL)
    run()
    mine = repository / "src/tiny_llm" / name
    generated = mine.read_text()
    mine.write_text(generated + note)
    capsys.readouterr()
    assert run() == 0
    assert mine.read_text() == generated
    assert mine.with_name(f"{mine.name}.backup1").read_text() == generated + note
    assert f"kept {mine.name}.backup1" in capsys.readouterr().err


def test_a_new_number_of_a_task_makes_no_backup(repository):
    run()
    mine = repository / "src/tiny_llm/sums.py"
    mine.write_text(mine.read_text().replace("1.1.1", "1.1.9"))
    assert run() == 0
    assert "1.1.9" not in mine.read_text()
    assert not list(mine.parent.glob("*.backup*"))


GIVEN = '[[given]]\nfile = "fixed.py"\nreason = "no exercise"\n'


def test_a_given_file_is_in_the_starter_as_it_is(repository):
    """Private names and all; a new version replaces the old one without a question."""
    (repository / "course.toml").write_text(GIVEN + (repository / "course.toml").read_text())
    answer, given = (repository / f"src/{each}/fixed.py" for each in ("tiny_llm_ref", "tiny_llm"))
    for value in (1, 2):
        answer.write_text(f"def half(x):\n    return _of(x)\n\n\ndef _of(x):\n    return x / {value}\n")
        assert run() == 0
        assert given.read_text() == answer.read_text()
    assert run(check=True) == 0


def test_what_is_given_exists_and_has_no_task(repository):
    manifest = repository / "course.toml"
    text = manifest.read_text()
    for name in ("fixed.py", "sums.py"):
        manifest.write_text(GIVEN.replace("fixed.py", name) + text)
        with pytest.raises(UserError, match=rf"given {name} is no file of .* without tasks"):
            run()


def test_a_public_function_without_a_task_is_an_error(repository):
    answer = repository / "src/tiny_llm_ref/sums.py"
    answer.write_text(answer.read_text() + "\ndef extra():\n    pass\n")
    with pytest.raises(UserError, match=r"extra does not belong to a task .* move it to tiny_llm_lab"):
        run()
