"""Where the answers of `chat` come from: an engine in this process, or a server."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx2
import pytest

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.serving.terminal.engine_answers import EngineAnswers
from tiny_llm_lab.serving.terminal.server_answers import ServerAnswers
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.scheduling.serving import Engine

WHO = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(kv_cache_memory="16M") as llm:
        yield llm


@pytest.fixture
def answers(llm: LLM) -> EngineAnswers:
    return EngineAnswers(llm)


def test_an_engine_streams_and_remembers_the_prefix(answers: EngineAnswers, llm: LLM) -> None:
    pieces = list(answers.stream(WHO, SamplingParams(max_tokens=24)))
    assert len(pieces) > 1 and "".join(pieces).startswith("I am")
    longer = [*WHO, {"role": "assistant", "content": "".join(pieces)}, *WHO]
    assert list(answers.stream(longer, SamplingParams(max_tokens=2)))
    cache = cast(Engine, llm.engine).core.prefix_cache
    assert cache is not None and cache.num_hit_tokens > 0


def test_ctrl_c_comes_between_two_steps(answers: EngineAnswers, llm: LLM) -> None:
    before = signal.getsignal(signal.SIGINT)
    stream = answers.stream(WHO, SamplingParams(max_tokens=3000, ignore_eos=True))
    next(stream)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert not llm.engine.has_requests
    assert signal.getsignal(signal.SIGINT) is before


def test_a_conversation_that_is_too_long_is_refused(answers: EngineAnswers, llm: LLM) -> None:
    with pytest.raises(UserError, match="tokens"):
        list(answers.stream([{"role": "user", "content": "word " * 5000}], SamplingParams()))
    assert not llm.engine.has_requests


def server(answer: Callable[[httpx2.Request], httpx2.Response], url: str = "http://here") -> ServerAnswers:
    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "served"}]})
        return answer(request)

    return ServerAnswers(url, transport=httpx2.MockTransport(handle))


def stream_of(*chunks: object) -> httpx2.Response:
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}" for chunk in chunks]
    return httpx2.Response(200, text=": ping\n\n" + "\n\n".join(lines) + "\n\n")


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize("url", ["http://here", "http://here/v1/"])
def test_a_server_is_asked_in_the_words_of_openai(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    asked: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
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


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx2.Response(400, json={"error": {"message": "too long"}}), "refuses: HTTP 400: too long"),
        (httpx2.Response(502, text="<html>"), "refuses: HTTP 502"),
        (stream_of({"error": {"message": "a step failed"}}), "a step failed"),
        (stream_of("{half"), "stopped answering"),
    ],
)
def test_what_a_server_refuses_is_one_line(answer: httpx2.Response, said: str) -> None:
    there = server(lambda request: answer)
    with pytest.raises(UserError, match=said):
        list(there.stream(WHO, SamplingParams()))
    there.close()


def _nobody(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("[Errno 111] Connection refused")


@pytest.mark.parametrize(
    ("handle", "complaint"),
    [
        (lambda request: httpx2.Response(200, json={"data": []}), "http://here lists no model"),
        (lambda request: httpx2.Response(200, text="<html>"), "http://here lists no model"),
        (
            lambda request: httpx2.Response(404),
            "http://here does not list its models (HTTP 404: an error without a message)",
        ),
        (_nobody, "no server answers at http://here ([Errno 111] Connection refused)"),
    ],
)
def test_a_server_that_is_none_is_refused_in_plain_words(
    handle: Callable[[httpx2.Request], httpx2.Response], complaint: str
) -> None:
    with pytest.raises(UserError) as refusal:
        ServerAnswers("http://here", transport=httpx2.MockTransport(handle))
    assert str(refusal.value) == f"{complaint}: start a server there, or give another --server"
