"""Functions in fresh processes: what comes back, and how they fail."""

import os

import pytest

from tiny_llm_lab.measure.bench.fresh import run_fresh
from tiny_llm_lab.runtime.console.talk import CrashError, UnwrittenError
from tiny_llm_lab.types import UserError


def threads_of(name):
    print("a line that is no result")
    return os.getpid(), os.environ.get(name)


def fail(how):
    errors = {
        "user": UserError("too long"),
        "todo": RuntimeError("task 2.2.3"),
        "bug": KeyError("no such key"),
        "type": TypeError("'int' object is not iterable"),
        "later": TypeError("softmax() got an unexpected keyword argument 'ops'"),
    }
    if how in errors:
        raise errors[how]
    os._exit(9)


def test_a_fresh_process_has_its_own_threads_and_leaves_stdout_alone(monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    first, threads = run_fresh(threads_of, "OMP_NUM_THREADS", 3)
    assert first != os.getpid() and threads == "3" and os.environ["OMP_NUM_THREADS"] == "5"
    again, threads = run_fresh(threads_of, "OMP_NUM_THREADS")
    assert again not in (first, os.getpid()) and threads == "5"
    captured = capfd.readouterr()
    assert captured.out == "" and "a line that is no result" in captured.err


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("user", UserError, "^too long$"),
        ("todo", UnwrittenError, r"TODO 2\.2\.3"),
        ("bug", CrashError, "no such key"),
        ("type", CrashError, "not iterable"),
        ("later", TypeError, "^softmax.. got an unexpected keyword"),
        ("exit", CrashError, "ended without a result"),
    ],
)
def test_a_failure_comes_back_as_what_it_is(how, kind, message):
    with pytest.raises(kind, match=message):
        run_fresh(fail, how)
