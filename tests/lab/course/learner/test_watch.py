"""`watch`: with saves and keys that are handed in, no terminal and no clock."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.helpers.trees import course_files

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.course.grading.spare import Spare
from tiny_llm_lab.course.learner import watch
from tiny_llm_lab.course.learner.watch import SAVE, Session, follow
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import Outcome, load_record, save_record
from tiny_llm_lab.course.record.standing import Standing, State, open_desk

FAILED = "h hint · e explain · c compare · q quit · save to grade again\n"
PASSED = "d diff with the reference · n next task · q quit\n"


class FakeSpare(Spare):
    """Ends with the exit codes that it is given, and notes what it was to run."""

    def __init__(self, codes):
        self.codes, self.ran = iter(codes), list[Sequence[str]]()

    def run(self, arguments):
        self.ran.append(arguments)
        return next(self.codes)

    def close(self):
        self.ran.append(["closed"])


@pytest.fixture
def happened(monkeypatch):
    """The commands that were run, in order."""
    listed = []

    def run(command, **settings):
        listed.append(" ".join(command[3:]))

    monkeypatch.setattr(watch.subprocess, "run", run)
    return listed


def watched(clone, codes, *events, has_keys=True):
    """The exit code of watching task 1.1.1, and what ran."""
    course, spare = load_course(clone), FakeSpare(codes)
    session = Session(course, course.task("1.1.1"), spare, has_keys=has_keys)
    code = follow(["", *events], session)
    session.close()
    return code, spare


@pytest.mark.usefixtures("happened")
def test_without_keys_each_save_grades_again_until_it_passes(clone, capsys):
    code, spare = watched(clone, [1, 1, 0], "", SAVE, "", "", SAVE, SAVE, has_keys=False)
    assert code == 0 and len(spare.ran) == 4
    again = "1.1.1 twice\nsave in src/tiny_llm to grade again; Ctrl-C ends\n"
    assert capsys.readouterr().out == f"{again}{again}1.1.1 twice\n"


@pytest.mark.usefixtures("happened")
def test_pytest_stops_at_the_first_failure_of_the_task(clone):
    ran = watched(clone, [1], "q")[1].ran[0]
    assert "-x" in ran and ran[ran.index("--task") + 1] == "1.1.1"
    assert "tests/week_1/test_day_1.py" in ran and "pytest" not in ran


def test_the_keys_of_a_failure(clone, happened, capsys):
    code, _ = watched(clone, [1], "h", "e", "c", "d", "x", "q")
    assert code == 1
    assert happened == ["hint 1.1.1", "explain 1.1.1", "compare 1.1.1"]
    assert capsys.readouterr().out.count(FAILED) == 4, "below the failure and each kind of help"


def test_the_keys_of_a_pass(clone, happened, capsys):
    assert watched(clone, [0], "h", "e", "c", "d", "q")[0] == 0
    assert happened == ["diff 1.1.1"]
    assert capsys.readouterr().out.count(PASSED) == 2


def passed(clone, name):
    """Record that a task, as it is written, has passed."""
    desk = open_desk(load_course(clone))
    outcome = Outcome(1, 0, 0, True, desk.sources.hash_of(desk.course.task(name)), "")
    save_record(clone, load_record(clone)[0].with_outcomes({name: outcome}))


@pytest.mark.usefixtures("happened")
def test_n_goes_on_to_the_next_task(written, capsys):
    watched(written, [1], "n", "q")
    assert "1.1.1 has not passed yet" in capsys.readouterr().out
    passed(written, "1.1.1")
    _, spare = watched(written, [0, 1], "n", "q")
    assert [ran[ran.index("--task") + 1] for ran in spare.ran[:2]] == ["1.1.1", "1.2.1"], "1.1.2 is C++"


def test_n_is_the_task_behind_this_one_and_at_the_end_one_before_it(clone):
    course = load_course(clone)
    for done, after in (
        (["1.2.1"], "1.2.2"),
        (["1.2.1", "1.2.2"], "1.1.1"),
        (["1.2.1", "1.2.2", "1.1.1"], None),
    ):
        states = {task.id: State.PASSED if task.id in done else State.TODO for task in course.tasks}
        found = Standing(course, states).next_after(course.task(done[-1]))
        assert (found and found.id) == after


def chosen(clone, what):
    return watch._chosen(open_desk(load_course(clone)), what)


def test_what_is_watched(written):
    for what, task in ((None, "1.1.1"), ("1.2", "1.2.1"), ("1.1.2", "1.1.2"), ("1.1", "1.1.1")):
        assert chosen(written, what).id == task
    passed(written, "1.1.1")
    assert [chosen(written, what).id for what in (None, "1.1", "1.1.1")] == ["1.2.1", "1.1.2", "1.1.1"]


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["7.7"], "there is no day '7.7': the course has 1.1 to 1.2"),
        (["1.1.7"], "there is no task '1.1.7': did you mean 1.1."),
        (["--task", "1.1.1"], "there is no --task here: watch takes a day or a task"),
    ],
)
def test_bad_input_is_one_line(args, says, monkeypatch, capsys):
    monkeypatch.setattr(watch, "follow", lambda *_: pytest.fail("it began to watch"))
    monkeypatch.setattr(watch, "desk_on_path", lambda: pytest.fail("it gave what was named"))
    assert main(["watch", *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}") and err.count("\n") == 1


def test_ctrl_c_while_waiting_is_one_line(clone, monkeypatch, capsys):
    def events(*_):
        yield ""
        raise KeyboardInterrupt

    spare = FakeSpare([1])
    monkeypatch.setattr(watch, "_events", events)
    monkeypatch.setattr(watch, "Spare", lambda root: spare)
    assert main(["watch"]) == 130
    assert capsys.readouterr().err == "interrupted\n" and spare.ran[-1] == ["closed"]


def test_a_save_is_heard_and_so_is_a_key(clone):
    keys = iter(["", "h"])
    source = watch._events(load_course(clone), lambda: next(keys, ""))
    assert next(source) == "", "nothing was saved yet"
    assert next(source) == "h"
    (clone / "src/tiny_llm/sums.py").write_text("x = 1\n")
    assert next(event for event in source if event) == SAVE


def test_a_backup_is_no_save():
    names = ("sums.py", "sum.cpp", "sum.metal", "sums.py.backup1", ".sums.py.swp")
    assert [watch._is_source(None, f"/src/{name}") for name in names] == [True] * 3 + [False] * 2


def test_a_spare_process_grades_the_code_as_it_is_when_it_is_told(clone):
    command = [sys.executable, "-m", "tiny_llm_lab.course.grading.spare"]
    process = subprocess.Popen(
        command,
        cwd=clone,
        env=environment(clone / "src") | {"PYTHONPATH": f"{clone / 'src'}:{environment()['PYTHONPATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (clone / "src/tiny_llm/sums.py").write_text(course_files("small")["src/tiny_llm_ref/sums.py"])
    arguments = ["-p", "tiny_llm_lab.course.grading.plugin", "--task", "1.1.1", "-q", "tests"]
    out, _ = process.communicate(json.dumps(arguments))
    assert process.returncode == 0 and "2 passed" in out
    assert load_record(clone)[0].outcomes["1.1.1"].is_pass
