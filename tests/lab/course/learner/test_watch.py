"""`watch`: with saves that are handed in, no file system and no clock."""

import argparse
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner import watch
from tiny_llm_lab.course.learner.watch import watch_until_green
from tiny_llm_lab.course.manifest import load_course

NOTHING: Sized = ()
SAVE: Sized = ("sums.py",)


def watched(codes: Iterable[int], changes: Iterable[Sized]) -> tuple[int, list[str]]:
    """The exit code, and what happened in which order."""
    left, happened = iter(codes), []

    def heard() -> Iterator[Sized]:
        for change in changes:
            happened.append("save" if change else "nothing")
            yield change

    def grade() -> int:
        happened.append("grade")
        return next(left)

    return watch_until_green(heard(), grade, lambda: happened.append("clear")), happened


def test_each_save_grades_again_until_it_passes() -> None:
    code, happened = watched([1, 1, 0], [NOTHING, NOTHING, SAVE, NOTHING, NOTHING, SAVE, SAVE])
    again = ["save", "clear", "grade"]
    assert code == 0
    assert happened == ["nothing", "clear", "grade", "nothing", *again, "nothing", "nothing", *again]


def test_ctrl_c_while_grading_ends() -> None:
    assert watched([130, 0], [NOTHING, SAVE])[0] == 130


def test_ctrl_c_while_waiting_is_one_line(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def saves(course: object) -> Iterator[Sized]:
        yield NOTHING
        raise KeyboardInterrupt

    commands: list[list[str]] = []

    def run(command: list[str], **settings: object) -> argparse.Namespace:
        commands.append(command)
        return argparse.Namespace(returncode=1)

    monkeypatch.setattr(watch, "saves", saves)
    monkeypatch.setattr(watch.subprocess, "run", run)
    assert main(["watch"]) == 130
    err = capsys.readouterr().err
    assert err == "save in src/tiny_llm to grade again; Ctrl-C ends\ninterrupted\n"
    (command,) = commands
    assert command[-1] == "tests/week_1/test_day_1.py" and command[command.index("--day") + 1] == "1.1"
    for asked in (["--task", "1.2.1"], ["1.2.1"]):
        assert main(["watch", *asked]) == 130
        assert commands[-1][-1] == "tests/week_1/test_day_2.py" and "--task" in commands[-1]
    assert main(["watch", "--day", "1.2"]) == 130
    assert commands[-1][-1] == "tests/week_1/test_day_2.py" and "--day" in commands[-1]


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["7.7"], "there is no day '7.7': the course has 1.1 to 1.2"),
        (["--task", "1.1.7"], "there is no task '1.1.7': did you mean 1.1."),
        (["1.1.7"], "there is no task '1.1.7': did you mean 1.1."),
        (["1.1", "--day", "1.2"], "watch grades one day, not both 1.1 and 1.2"),
        (["1.2", "--task", "1.1.1"], "task 1.1.1 is not in day 1.2: leave out one of them"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "watch_until_green", lambda *_: pytest.fail("it began to watch"))
    assert main(["watch", *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}") and err.count("\n") == 1


def test_a_save_is_heard(clone: Path) -> None:
    source = watch.saves(load_course(clone))
    assert not next(source), "nothing was saved yet"
    (clone / "src/tiny_llm/sums.py").write_text("x = 1\n")
    assert next(change for change in source if change)


def test_a_backup_is_no_save() -> None:
    names = ("sums.py", "sum.cpp", "sum.metal", "sums.py.backup1", ".sums.py.swp")
    assert [watch._is_source(None, f"/src/{name}") for name in names] == [True] * 3 + [False] * 2
