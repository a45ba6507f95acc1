"""`chat`: what is typed, what is asked and what is printed."""

import io
import sys
from collections.abc import Callable, Generator, Mapping, Sequence

import pytest
from tests.helpers.fake_serving import parse

from tiny_llm_lab.serving.terminal import command
from tiny_llm_lab.types import SamplingParams, UserError

Capture = pytest.CaptureFixture[str]


class Scripted:
    """Gives the answers of a script; one that is an exception is raised after a first piece."""

    def __init__(self, *answers: str | BaseException) -> None:
        self._answers = list(answers)
        self.asked: list[list[tuple[str, str]]] = []
        self.is_closed = False

    def stream(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams
    ) -> Generator[str, None, None]:
        self.asked.append([(each["role"], each["content"]) for each in messages])
        answer = self._answers.pop(0)
        if isinstance(answer, UserError):
            raise answer
        yield "so "
        if isinstance(answer, BaseException):
            raise answer
        yield answer

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def talk(typed: str, *answers: str | BaseException, flags: Sequence[str] = ()) -> Scripted:
        scripted = Scripted(*answers)
        monkeypatch.setattr(command, "_answers", lambda args: scripted)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"))
        assert command.run(parse(command, *flags)) == 0
        assert scripted.is_closed
        return scripted

    return talk


def test_a_conversation_is_sent_as_a_whole(talk: Callable[..., Scripted], capsys: Capture) -> None:
    asked = talk("one\n\n two \n", "be it", "what", flags=["--system", "Be short."]).asked
    first = [("system", "Be short."), ("user", "one")]
    assert asked == [first, [*first, ("assistant", "so be it"), ("user", "two")]]
    assert capsys.readouterr().out == "so be it\nso what\n", "stdout has the answers and nothing else"


def test_clear_forgets_and_exit_ends(talk: Callable[..., Scripted], capsys: Capture) -> None:
    asked = talk("one\n/clear\ntwo\n/what\n/exit\nthree\n", "a", "b").asked
    assert asked == [[("user", "one")], [("user", "two")]]
    assert "/clear forgets" in capsys.readouterr().err, "what is no command is told those that are"


def test_a_refused_question_is_not_part_of_the_conversation(
    talk: Callable[..., Scripted], capsys: Capture
) -> None:
    asked = talk("long\nshort\n", UserError("too long"), "b").asked
    assert asked == [[("user", "long")], [("user", "short")]]
    assert capsys.readouterr().err == "error: too long. /clear begins anew\n"


def test_ctrl_c_ends_the_answer_and_not_the_program(talk: Callable[..., Scripted], capsys: Capture) -> None:
    asked = talk("one\ntwo\n", KeyboardInterrupt(), "b").asked
    assert asked[1] == [("user", "one"), ("assistant", "so "), ("user", "two")], "what came is remembered"
    out, err = capsys.readouterr()
    assert (out, err) == ("so \nso b\n", " [interrupted]\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_stdin_that_is_no_text_is_refused(errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_answers", lambda args: Scripted())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8", errors))
    with pytest.raises(UserError, match="UTF-8"):
        command.run(parse(command))
