"""A replica's application answers as it does behind a socket, and learns when its client has gone."""

import asyncio
import json
from contextlib import aclosing

import pytest
from tests.helpers.echo_app import EchoApp

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.ray_cluster.asgi_call import HttpRequest, ResponseHead, call_app


def asked(method: str, path: str, body: bytes = b"") -> HttpRequest:
    return HttpRequest(method, path, b"", ((b"content-type", b"application/json"),), body)


def test_an_answer_is_its_head_and_its_body() -> None:
    async def run() -> list[ResponseHead | bytes]:
        request = asked("POST", "/v1/completions", json.dumps({"prompt": "hello"}).encode())
        return [piece async for piece in call_app(EchoApp(), request)]

    head, *body = asyncio.run(run())
    assert isinstance(head, ResponseHead) and head.status == 200
    assert (b"content-type", b"application/json") in head.headers
    assert [json.loads(piece) for piece in body if isinstance(piece, bytes)] == [
        {"id": "cmpl-1", "text": "hello"}
    ]


def test_a_stream_comes_while_it_is_made() -> None:
    async def run() -> int:
        app = EchoApp(0.001)
        async with aclosing(call_app(app, asked("GET", "/stream"))) as pieces:
            await anext(pieces)
            assert bytes(await anext(pieces)).startswith(b"0 ")  # type: ignore[arg-type]
            assert app.num_cancelled == 0
        return app.num_cancelled

    assert asyncio.run(run()) == 1, "left early, the application is told before the call has ended"


def test_a_reader_that_is_slow_gets_the_whole_text() -> None:
    async def run() -> bytes:
        text = b""
        async for piece in call_app(EchoApp(), asked("GET", "/stream")):
            if isinstance(piece, bytes):
                text += piece
                await asyncio.sleep(0.01)
        return text

    assert asyncio.run(run()) == b"".join(b"%d " % number for number in range(1000))


def test_an_error_of_the_application_is_raised() -> None:
    async def run() -> None:
        async for _ in call_app(EchoApp(), asked("POST", "/v1/completions", b"{}")):
            pass

    with pytest.raises(KeyError):
        asyncio.run(run())


@pytest.mark.parametrize(
    "argv", [["--shutdown"], ["--num-replicas", "0"], ["--max-num-seqs", "8", "--model", "nope"]]
)
def test_bad_flags_are_one_line(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", *argv]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
