"""How the commands say that they are called: in a checkout, and where the wheel is installed."""

import sys

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.dispatch import todo_line
from tiny_llm_lab.runtime import checkout
from tiny_llm_lab.runtime.console import talk


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """The package lies where no checkout is."""
    monkeypatch.setattr(checkout, "__file__", str(tmp_path / "lib" / "tiny_llm_lab" / "runtime" / "x.py"))


def test_a_checkout_is_called_by_pdmw():
    assert talk.program() == "./pdmw run"


def test_what_was_typed_is_what_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/some/bin/tiny-llm"])
    assert cli.main(["run", "--banana"]) == 2
    assert capsys.readouterr().err.endswith(": tiny-llm run --help lists the flags\n")
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "  tiny-llm run " in out and "  tiny-llm test " in out, "an editable install has the course"
    assert "check" not in out and cli.main(["check"]) == 2, "what changes the course is no part of the wheel"


@pytest.mark.usefixtures("installed")
def test_commands_of_the_course_say_what_they_lack(capsys):
    for name in ("status", "next", "hint", "test", "test-ref", "stubs", "report"):
        assert cli.main([name]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {name} needs the course's files") and err.count("\n") == 1
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "tiny-llm serve" in out and "trace" in out and "test-ref" not in out and "check" not in out
    assert cli.main(["nosuch"]) == 2
    assert "tiny-llm alone lists the commands" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_an_error_is_not_taken_for_a_task():
    assert todo_line(RuntimeError("task 1.1.1")) is None
