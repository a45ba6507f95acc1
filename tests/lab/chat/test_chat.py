"""`chat`: where answers come from, what is typed, what is asked and what is printed."""

import io
import json
import os
import signal
import subprocess
import sys
from typing import Any, cast

import httpx2
import pytest
from tests.helpers.fake_serving import parse

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.runtime.models.greeting import greeting
from tiny_llm_lab.serving.terminal import command
from tiny_llm_lab.serving.terminal.command import EngineAnswers
from tiny_llm_lab.serving.terminal.server_answers import ServerAnswers
from tiny_llm_lab.types import UserError
from tiny_llm_ref import Engine

WHO = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def llm():
    with LLM(kv_cache_memory="16M") as llm:
        yield llm


@pytest.fixture
def answers(llm):
    return EngineAnswers(llm)


def test_an_engine_streams_and_remembers_the_prefix(answers, llm):
    pieces = list(answers.stream(WHO, SamplingParams(max_tokens=24)))
    assert len(pieces) > 1 and "".join(pieces).startswith("I am")
    longer = [*WHO, {"role": "assistant", "content": "".join(pieces)}, *WHO]
    assert list(answers.stream(longer, SamplingParams(max_tokens=2)))
    cache = cast(Engine, llm.engine).core.prefix_cache
    assert cache is not None and cache.num_hit_tokens > 0


def test_ctrl_c_comes_between_two_steps(answers, llm):
    before = signal.getsignal(signal.SIGINT)
    stream = answers.stream(WHO, SamplingParams(max_tokens=3000, ignore_eos=True))
    next(stream)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert not llm.engine.has_requests
    assert signal.getsignal(signal.SIGINT) is before


def test_a_conversation_that_is_too_long_is_refused(answers, llm):
    with pytest.raises(UserError, match="tokens"):
        list(answers.stream([{"role": "user", "content": "word " * 5000}], SamplingParams()))
    assert not llm.engine.has_requests


def server(answer, url="http://here"):
    def handle(request):
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "served"}]})
        return answer(request)

    return ServerAnswers(url, transport=httpx2.MockTransport(handle))


def stream_of(*chunks):
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}" for chunk in chunks]
    return httpx2.Response(200, text=": ping\n\n" + "\n\n".join(lines) + "\n\n")


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize("url", ["http://here", "http://here/v1/"])
def test_a_server_is_asked_in_the_words_of_openai(url, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asked: list[dict[str, Any]] = []

    def answer(request):
        assert request.url.path == "/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer secret"
        asked.append(json.loads(request.content))
        usage = {"choices": [], "usage": {"completion_tokens": 2}}
        parts = (delta(role="assistant"), delta(content="I "), delta(content="am"), delta(content=None))
        return stream_of(*parts, usage, "[DONE]")

    there = server(answer, url)
    sampling = SamplingParams(max_tokens=5, temperature=0.5, top_k=3, stop=("x",))
    assert "".join(there.stream(WHO, sampling)) == "I am"
    there.close()
    (body,) = asked
    assert body["model"] == "served" and body["messages"] == WHO and body["stream"]
    assert (body["max_tokens"], body["temperature"], body["top_k"], body["stop"]) == (5, 0.5, 3, ["x"])
    assert "min_p" not in body, "a server of OpenAI's refuses names that it does not know"


REFUSALS = [
    (httpx2.Response(400, json={"error": {"message": "too long"}}), "refused this: HTTP 400: too long"),
    (httpx2.Response(502, text="<html>"), "refused this: HTTP 502"),
    (stream_of({"error": {"message": "a step failed"}}), "a step failed"),
    (stream_of("{half"), "stopped answering"),
]


@pytest.mark.parametrize(("answer", "said"), REFUSALS)
def test_what_a_server_refuses_is_one_line(answer, said):
    there = server(lambda request: answer)
    with pytest.raises(UserError, match=said):
        list(there.stream(WHO, SamplingParams()))
    there.close()


def _nobody(request):
    raise httpx2.ConnectError("[Errno 111] Connection refused")


NO_SERVERS = [
    (lambda request: httpx2.Response(200, json={"data": []}), "http://here does not list a model"),
    (lambda request: httpx2.Response(200, text="<html>"), "http://here does not list a model"),
    (
        lambda request: httpx2.Response(404),
        "http://here does not list its models (HTTP 404: the server sent no message)",
    ),
    (_nobody, "cannot reach a server at http://here ([Errno 111] Connection refused)"),
]


@pytest.mark.parametrize(("handle", "complaint"), NO_SERVERS)
def test_a_server_that_is_none_is_refused_in_plain_words(handle, complaint):
    with pytest.raises(UserError) as refusal:
        ServerAnswers("http://here", transport=httpx2.MockTransport(handle))
    assert str(refusal.value) == f"{complaint}: start a server there, or give another --server"


class Scripted:
    """Gives the answers of a script; one that is an exception is raised after a first piece."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked: list[list[tuple[str, str]]] = []
        self.is_closed = False

    def stream(self, messages, sampling):
        self.asked.append([(each["role"], each["content"]) for each in messages])
        answer = self._answers.pop(0)
        if isinstance(answer, UserError):
            raise answer
        yield "so "
        if isinstance(answer, BaseException):
            raise answer
        yield answer

    def close(self):
        self.is_closed = True


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture
def talk(monkeypatch):
    def talk(
        typed,
        *answers,
        flags=(),
        stdin=io.TextIOWrapper,
    ):
        scripted = Scripted(*answers)
        monkeypatch.setattr(command, "_answers", lambda args: scripted)
        monkeypatch.setattr(sys, "stdin", stdin(io.BytesIO(typed.encode()), "utf-8"))
        assert command.run(parse(command, *flags)) == 0
        assert scripted.is_closed
        return scripted

    return talk


def test_a_conversation_is_sent_as_a_whole(talk, capsys):
    asked = talk("one\n\n two \n", "be it", "what", flags=["--system", "Be short."]).asked
    first = [("system", "Be short."), ("user", "one")]
    assert asked == [first, [*first, ("assistant", "so be it"), ("user", "two")]]
    assert capsys.readouterr().out == "so be it\nso what\n", "stdout has the answers and nothing else"


def test_on_a_terminal_a_number_asks_one_of_two_questions(talk, capsys):
    assert talk("1\n", "a").asked == [[("user", "1")]], "what is piped is asked as it is"
    assert capsys.readouterr().err == ""
    asked = talk("1\n2\n/clear\n2\n", "a", "b", "c", stdin=Terminal).asked
    said = capsys.readouterr().err
    first, second = greeting(["default"]).questions
    assert [each[-1] for each in asked] == [("user", first), ("user", "2"), ("user", second)]
    assert said.startswith(greeting(["default"]).says) and f"  1  {first}\n  2  {second}\n" in said
    assert greeting(["default-hybrid", "x"]) != greeting(["x"])


def test_clear_forgets_and_exit_ends(talk, capsys):
    asked = talk("one\n/clear\ntwo\n/what\n/exit\nthree\n", "a", "b").asked
    assert asked == [[("user", "one")], [("user", "two")]]
    assert "/clear forgets" in capsys.readouterr().err, "what is no command is told those that are"


def test_a_refused_question_is_not_part_of_the_conversation(talk, capsys):
    asked = talk("long\nshort\n", UserError("too long"), "b").asked
    assert asked == [[("user", "long")], [("user", "short")]]
    assert capsys.readouterr().err == "error: too long. /clear starts a new conversation\n"


def test_ctrl_c_ends_the_answer_and_not_the_program(talk, capsys):
    asked = talk("one\ntwo\n", KeyboardInterrupt(), "b").asked
    assert asked[1] == [("user", "one"), ("assistant", "so "), ("user", "two")], "what came is remembered"
    out, err = capsys.readouterr()
    assert (out, err) == ("so \nso b\n", " [interrupted]\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_stdin_that_is_no_text_is_refused(errors, monkeypatch):
    monkeypatch.setattr(command, "_answers", lambda args: Scripted())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8", errors))
    with pytest.raises(UserError, match="UTF-8"):
        command.run(parse(command))


def test_without_a_server_no_http_client_is_needed():
    code = "import sys; sys.modules['httpx2'] = None; import tiny_llm_lab.serving.terminal.command"
    subprocess.run([sys.executable, "-c", code], check=True)
