"""A course of two days, small enough to break on purpose."""

import sys
from dataclasses import dataclass

import pytest
from tests.helpers.trees import course_toml, write_files

COURSE = course_toml(
    'day: id = "1.1"; title = "One"; chapter = "one.md"',
    'day: id = "1.2"; title = "Two"; chapter = "two.md"',
    'task: id = "1.1.1"; title = "twice"; file = "sums.py"; symbols = ["twice"]',
    'task: id = "1.2.1"; title = "the counter"; file = "sums.py"; symbols = ["Counter"]',
)

ANSWER = """
def twice(x):
    return 2 * x

class Counter:
    def __init__(self):
        self.n = 0
    def step(self):
        self.n += 1
        return self.n
"""

STARTER = """
def twice(x):
    raise NotImplementedError("task 1.1.1")

class Counter:
    def __init__(self):
        raise NotImplementedError("task 1.2.1")
    def step(self):
        raise NotImplementedError("task 1.2.1")
"""

TESTS = """
import pytest

@pytest.mark.task("1.1.1")
def test_twice(llm):
    assert llm.twice(2) == 4

@pytest.fixture
def counter(llm):
    return llm.Counter()

@pytest.mark.task("1.2.1")
def test_counter(counter):
    assert counter.step() == 1

def test_of_the_lab():
    pass
"""


@pytest.fixture
def tree(tmp_path):
    """The root of its repository."""
    files = {
        "course.toml": COURSE,
        "src/tiny_llm/__init__.py": "from .sums import Counter, twice\n",
        "src/tiny_llm/sums.py": STARTER,
        "src/tiny_llm_ref/__init__.py": "from .sums import Counter, twice\n",
        "src/tiny_llm_ref/sums.py": ANSWER,
        "tests/week_1/test_day_1.py": TESTS,
        "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
    }
    return write_files(tmp_path, files)


@dataclass(frozen=True)
class Graded:
    """The end of a pytest run."""

    returncode: int
    stdout: str
    stderr: str


def grading(root, pytester, monkeypatch):
    """Runs pytest on the course in `root`, in this process: a new one for every test would take a minute."""

    def run(*args):
        for name in list(sys.modules):
            if name.partition(".")[0] in ("tiny_llm", "tiny_llm_ref"):
                monkeypatch.delitem(sys.modules, name)
        done = pytester.runpytest_inprocess(
            "-p", "tiny_llm_lab.course.grading.plugin", *args, no_reraise_ctrlc=True
        )
        return Graded(int(done.ret), done.stdout.str() + "\n", done.stderr.str())

    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root / "src"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second would not be seen
    return run
