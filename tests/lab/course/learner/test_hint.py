"""`hint`: one at a time, remembered, and never past the last one."""

import pytest

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.record.record import load_record

FIRST, SECOND = "hint 1 of 2: What is x + x?", "hint 2 of 2: Multiply by 2."
REST = "the chapter has the rest: book/src/one.md#task-111-twice-a-number"


def hint(capsys, *args):
    capsys.readouterr()
    assert main(["hint", *args]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_call_shows_one_more(clone, capsys):
    assert hint(capsys, "1.1.1") == ["1.1.1 twice", FIRST]
    assert hint(capsys, "1.1.1") == ["1.1.1 twice", SECOND, REST]
    assert hint(capsys, "1.1.1")[1:] == [
        "there are no more hints: ./pdmw run hint 1.1.1 --again shows those you saw",
        REST,
    ]
    assert load_record(clone)[0].hints == {"1.1.1": 2}


def test_again_shows_those_seen_and_no_more(clone, capsys):
    assert main(["hint", "1.1.1", "--again"]) == 2
    assert "you have not seen a hint for task 1.1.1 yet: run ./pdmw run hint" in capsys.readouterr().err
    hint(capsys, "1.1.1")
    assert hint(capsys, "1.1.1", "--again") == ["1.1.1 twice", FIRST]
    assert hint(capsys, "1.1.1")[1] == SECOND
    assert hint(capsys, "1.1.1", "--again")[1:] == [FIRST, SECOND, REST]


@pytest.mark.usefixtures("clone")
def test_a_task_without_hints_names_its_chapter(capsys):
    assert hint(capsys, "1.2.1") == ["1.2.1 the counter", "this task has no hints: read book/src/two.md"]


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("1.1.9", "there is no task '1.1.9': did you mean 1.1."),
        ("1.1", "1.1 is a day: choose one of its tasks, 1.1.1, 1.1.2"),
        ("twice", "there is no task 'twice': the course has 1.1.1 to 1.2.2"),
    ],
)
def test_an_unknown_task_is_one_line(name, says, capsys):
    assert main(["hint", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {says}") and err.count("\n") == 1
