"""What is sent in another way than the API's clients send it, byte by byte."""

import json
import socket
from dataclasses import dataclass

import pytest
from tests.helpers.scripted_client import scripted_client


@dataclass(frozen=True)
class Sent:
    """A report of bytes: what is sent, the first line of the answer, and what it has and has not."""

    source: str
    symptom: str
    lines: tuple[str, ...]  # of the head
    body: bytes
    status: int
    has: tuple[str, ...] = ()
    has_not: tuple[str, ...] = ()

    def answer(self, address):
        """All that the server sends until it closes the connection."""
        with socket.create_connection(address, timeout=20) as connection:
            connection.sendall("\r\n".join([*self.lines, "", ""]).encode("latin-1") + self.body)
            received = bytearray()
            while piece := connection.recv(65536):
                received += piece
        return bytes(received)


def _posted(symptom, body, *has):
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Connection: close", *JSON]
    return Sent("M1", symptom, (*lines, f"Content-Length: {len(body)}"), body, 400, has)


def _old(source, symptom, path, body, *has):
    data = json.dumps(body).encode()
    lines = (f"POST {path} HTTP/1.0", "Host: localhost", *JSON, f"Content-Length: {len(data)}")
    return Sent(source, symptom, lines, data, 200, has, ("transfer-encoding", "\r\n0\r\n"))


def _malformed(symptom, *lines, body=b"", has='{"error":{"message"'):
    wanted = (has, "content-type: application/json", "connection: close")
    return Sent("found F8", symptom, lines, body, 400, wanted, ("text/plain",))


JSON = ("Content-Type: application/json",)
POST, HOST = "POST /v1/completions HTTP/1.1", "Host: localhost"
ASKED = {"prompt": "x", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
BIASED = {"prompt": "x", "logit_bias": {"9" * 5000: 1}}
DEEP = b'{"prompt": "x", "user": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
SENT = [
    _old("uvicorn PR1360", "1.0, a stream", "/v1/completions", {**ASKED, "stream": True}, "data: [DONE]"),
    _old("uvicorn PR1360", "HTTP/1.0, a chat", "/v1/chat/completions", CHAT, "data: [DONE]"),
    _old("uvicorn PR1360", "HTTP/1.0, one document", "/v1/completions", ASKED, "content-length", '"usage"'),
    Sent("uvicorn PR1360", "HTTP/1.0, GET", ("GET /health HTTP/1.0", HOST), b"", 200, (), ("transfer-enc",)),
    Sent("uvicorn PR1360", "HTTP/1.0, HEAD", ("HEAD / HTTP/1.0", HOST), b"", 200, (), ("transfer-enc",)),
    _malformed("Content-Length of 31 digits", POST, HOST, f"Content-Length: {10**30}"),
    _malformed("a chunk of no size", POST, HOST, *JSON, "Transfer-Encoding: chunked", body=b"zz\r\n"),
    _malformed("no HTTP at all", "hello"),
    _malformed("a header without a colon", POST, HOST, "what is this"),
    _malformed("two lengths", POST, HOST, "Content-Length: 2", "Content-Length: 3", body=b"{}"),
    _malformed("Anthropic's", POST.replace("completions", "messages"), HOST, "bad", has='"type":"error"'),
    _posted("5,000 digits", b'{"seed": ' + b"9" * 5000 + b"}", "has too many digits: send fewer"),
    _posted("deep nesting", DEEP, "the JSON is nested too deeply: flatten it"),
    _posted("a key of 5,000 digits", json.dumps(BIASED).encode(), "logit_bias: keys must be token ids"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with scripted_client(tmp_path_factory.mktemp("made") / "qwen", "an answer") as server:
        yield "127.0.0.1", server.site.base_url.port


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: f"{sent.source}: {sent.symptom[:40]}")
def test_bytes_as_reported(sent, address):
    answer = sent.answer(address).decode()
    assert answer.startswith(f"HTTP/1.1 {sent.status} "), answer[:400]
    assert all(each in answer for each in sent.has), answer[:800]
    assert not any(each in answer for each in sent.has_not), answer[:800]
