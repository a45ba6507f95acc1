"""`compare` as it is typed, on the repository itself."""

import re
import subprocess
import sys

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.runtime.checkout import repository


def compare(*words):
    command = [sys.executable, "-m", "tiny_llm_lab", "compare", *words]
    return subprocess.run(command, cwd=repository(), env=environment(), capture_output=True, text=True)


def test_both_packages_run_in_one_process():
    done = compare("1.1.1", "-k", "softmax")
    assert re.match(r"\d+ tests on both packages", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("words", [["9.9"], ["1.1.9"]])
def test_what_does_not_exist_is_one_line(words, capsys):
    assert main(["compare", *words]) == 2
    out, err = capsys.readouterr()
    kind = "task" if words[0].count(".") == 2 else "day"
    assert (out, err.count("\n")) == ("", 1) and f"there is no {kind} '{words[0]}'" in err


def test_a_word_that_no_test_has_is_one_line():
    done = compare("1.1", "-k", "zzz")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no test" in done.stderr
