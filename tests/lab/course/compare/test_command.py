"""`compare` as it is typed, on the repository itself."""

import re
import subprocess
import sys

import pytest

from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.runtime.checkout import repository


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiny_llm_lab", "compare", *words]
    return subprocess.run(command, cwd=repository(), env=environment(), capture_output=True, text=True)


def test_both_packages_run_in_one_process() -> None:
    done = compare("1.1.1", "-k", "softmax")
    assert re.match(r"\d+ tests on both packages", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["9.9"], "there is no day '9.9'"),
        (["1.1.9"], "there is no task '1.1.9'"),
        (["1.1", "-k", "zzz"], "no test"),
    ],
)
def test_what_does_not_exist_is_one_line(words: list[str], says: str) -> None:
    done = compare(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr
