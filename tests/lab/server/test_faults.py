"""What is refused, what fails, and that the server serves on."""

import asyncio
import json
import resource
import socket
import sys
from dataclasses import replace

import httpx2
import pytest
from markupsafe import escape
from tests.helpers.fake_engine import FakeEngine, fake_server, raw_post, read_until, wait_until

from tiny_llm_lab.serving.async_engine.engine import RequestStream
from tiny_llm_lab.serving.async_engine.messages import NewRequest
from tiny_llm_lab.serving.server import run_server
from tiny_llm_lab.serving.server.guard import Sites
from tiny_llm_lab.serving.server.run_server import HttpProtocol, allow_connections, listen
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings
from tiny_llm_lab.types import SamplingParams, StructuredOutputs, TokenLogprobs, UserError

SMALL = ServerSettings(drain_s=0, max_body_size=100_000, api_key=())
QUIET = RequestLimits(keep_alive_s=0)


@pytest.fixture(scope="module")
def server():
    with fake_server(settings=SMALL) as server:
        yield server


REFUSED_BODIES = [
    (400, b"[" * 10_000 + b"]" * 10_000),
    (400, b'{"prompt": "x", "response_format": ' + b'{"type":' * 500 + b"1" + b"}" * 500 + b"}"),
    (400, b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"),
    (400, b'{"prompt": "x", "guided_json": ' + b'{"a":' * 990 + b"1" + b"}" * 990 + b"}"),
    (400, b'{"prompt": "' + b"word " * 15_000 + b'"}'),
    (413, b" " * 100_001),
]


@pytest.mark.parametrize(("status", "content"), REFUSED_BODIES)
def test_bodies_that_are_refused(server, status, content):
    with raw_post(server.port, content) as connection:
        head, _, body = read_until(connection, b"}}").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert server.post("/v1/completions", prompt="x", max_tokens=1).status_code == 200


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_all_of_a_body_that_is_refused_reads_why(server, is_chunked):
    head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    length = "Transfer-Encoding: chunked\r\n\r\nb71b00" if is_chunked else "Content-Length: 12000000\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}{length}\r\n".encode() + b" " * 12_000_000 + b"\r\n0\r\n\r\n" * is_chunked)
        text = read_until(connection, b"}}")
        assert text.startswith(b"HTTP/1.1 413 ") and b"body_too_large" in text
        assert connection.recv(1) == b""


class Hasty(HttpProtocol):
    head_timeout_s = 0.1


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come_closes_the_connection(sent):
    engine = FakeEngine(by_hand=True)
    with (
        fake_server(engine, limits=QUIET, protocol=Hasty) as server,
        raw_post(server.port, {"prompt": "x", "max_tokens": 1}) as connection,
    ):
        connection.sendall(POST + AHEAD)
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as idle:
                idle.sendall(sent)
                assert idle.recv(1) == b""
            engine.permit()  # the answer took longer than a head may
            assert read_until(connection, b"}}").startswith(b"HTTP/1.1 200 ")
        connection.sendall(sent)
        assert connection.recv(1) == b""


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
AHEAD = b'Content-Type: application/json\r\nContent-Length: 33\r\n\r\n{"prompt": "x", "max_tokens": 1 }'
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {  # what a request begins with, whose rest is too long
    "method": b"",
    "header": POST + b"X: ",
    "trailer": CHUNKED + b"0\r\nX: ",
    "extension": CHUNKED + b"1;x=",
    "body without a length": CHUNKED + b"%x\r\n" % 100_001,
}


@pytest.mark.parametrize("part", ENDLESS)
def test_every_part_of_a_request_is_bounded(server, part):
    size, status = (100_001, b"413") if part.startswith("body") else (65_537, b"400")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(ENDLESS[part] + b"y" * size)
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 %s " % status)


def test_requests_that_were_sent_ahead_are_answered_in_turn(server):
    sent = [b'{"prompt": "x", "max_tokens": %d}' % number for number in range(1, 9)]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    ahead = b"".join(head + b"Content-Length: %d\r\n\r\n%s" % (len(each), each) for each in sent)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(ahead)
        text = read_until(connection, b'"completion_tokens":8')
    assert text.count(b"HTTP/1.1 200 ") == 8


class Broken(FakeEngine):
    def _output(self, name):
        return replace(super()._output(name), logprobs=(TokenLogprobs(97, float("nan"), ()),))


def test_nan_is_an_error_and_never_json():
    with fake_server(Broken()) as server:
        for is_stream in (False, True):
            answer = server.post("/v1/completions", prompt="x", max_tokens=1, logprobs=1, stream=is_stream)
            assert "NaN" not in answer.text.replace("computed NaN", "") and "check its weights" in answer.text
            assert answer.status_code == (200 if is_stream else 500)


def test_a_step_that_fails_fails_its_requests_only():
    engine = FakeEngine(by_hand=True)
    with fake_server(engine, limits=QUIET) as server:
        with raw_post(server.port, {"prompt": "x", "stream": True}) as stream:
            with raw_post(server.port, {"prompt": "x"}) as whole:
                wait_until(lambda: len(engine.requests) == 2)
                engine.permit()
                read_until(stream, b"data:")
                engine.failure = RuntimeError("no memory")
                engine.permit()
                assert read_until(whole, b"}}").startswith(b"HTTP/1.1 500 ")
            text = read_until(stream, b"0\r\n\r\n")
        assert b'"code":"engine_error"' in text and b"[DONE]" not in text
        assert server.get("/health").status_code == 200
        engine.permit(100)
        assert server.post("/v1/completions", prompt="x").status_code == 200


def test_an_engine_that_dies_is_told():
    engine = FakeEngine(by_hand=True)
    with fake_server(engine, limits=QUIET) as server:
        with raw_post(server.port, {"prompt": "x"}) as connection:
            wait_until(lambda: engine.requests)
            engine.failure = SystemExit("dead")
            engine.permit()
            assert read_until(connection, b"}}").startswith(b"HTTP/1.1 503 ")
        wait_until(lambda: not server.async_engine.is_ready)
        assert server.get("/health").status_code == 503
        refused = server.post("/v1/completions", prompt="x")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_an_engine_that_hangs_is_not_healthy_until_it_answers(caplog):
    engine, now = FakeEngine(by_hand=True), [0.0]
    with fake_server(engine, limits=QUIET) as server:
        asynced = server.async_engine
        asynced._clock = lambda: now[0]

        def health(after_s):
            now[0] += after_s
            return server.get("/health").status_code

        assert health(1000) == 200, "it has nothing to do"
        with raw_post(server.port, {"prompt": "x", "max_tokens": 3, "stream": True}) as stream:
            wait_until(lambda: engine.requests and not asynced._adding)
            assert [health(59), health(2), health(1000)] == [200, 503, 503]
            refused = server.post("/v1/completions", prompt="x")
            assert "said nothing for 1061 s" in refused.text and refused.headers["retry-after"] == "10"
            assert caplog.text.count("the engine hangs") == 1
            engine.permit()
            wait_until(lambda: health(0) == 200)
            assert health(61) == 503
            engine.permit(2)
            read_until(stream, b"[DONE]")
        of_budget = asynced.config.max_num_batched_tokens / 10
        for num_tokens, longest_s in ((100, 70.06), (2**15, 60 + 3 * of_budget)):
            asynced._streams["p"], asynced._heard_s = RequestStream("p", num_prompt_tokens=num_tokens), now[0]
            assert [health(longest_s - 1), health(2)] == [200, 503], "a step has as many prompt tokens"
            asynced.receive([])
        del asynced._streams["p"]
        asked = NewRequest("f", [1], SamplingParams(structured_outputs=StructuredOutputs(regex="a")))
        asynced._streams["f"], asynced._adding[0] = RequestStream("f"), [asked]
        assert health(1000) == 200, "a form may take long to compile"


def test_requests_for_background_names_have_a_class_of_their_own():
    engine = FakeEngine()
    with fake_server(engine, limits=RequestLimits(background=("claude-haiku*", "quick"))) as server:
        names = ("fake", "quick", "claude-haiku-5", "quicker", "haiku", None)
        body = {"prompt": "x", "max_tokens": 1}
        found = [server.post("/v1/completions", model=name, **body).status_code for name in names]
        asked = [
            httpx2.post(f"{server.url}/v1/completions", json=body, headers={"X-Priority-Class": each})
            for each in ("batch", "interactive", "urgent")
        ]
    assert found == [200, 200, 200, 404, 404, 200]
    assert [each.status_code for each in asked] == [200, 200, 400]
    assert "x-priority-class must be one of interactive, batch" in asked[-1].text
    assert engine.classes == ["interactive", "batch", "batch", "interactive", "batch", "interactive"]


def test_requests_with_background_keys_have_that_class_too():
    engine, keys = FakeEngine(), ServerSettings(drain_s=0, api_key=("me",), background_key=("cron", "ci"))
    sent = [
        {"Authorization": "Bearer me"},
        {"Authorization": "Bearer ci"},
        {"x-api-key": "cron", "x-priority-class": "interactive"},
        {"x-api-key": "me", "x-priority-class": "batch"},
        {"x-api-key": "c"},
    ]
    with fake_server(engine, keys) as server:
        body = {"prompt": "x", "max_tokens": 1}
        found = [httpx2.post(f"{server.url}/v1/completions", json=body, headers=each) for each in sent]
    assert [each.status_code for each in found] == [200, 200, 200, 200, 401]
    assert engine.classes == ["interactive", "batch", "batch", "batch"]
    alone = ServerSettings(background_key=("cron",))
    assert alone.keys == ("cron",) and Sites.of(alone) is None, "it is a key: nobody comes in without"


def test_two_servers_on_one_port():
    with listen("127.0.0.1", 0) as sock, pytest.raises(UserError, match="in use"):
        listen("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(UserError, match="not an address"):
        listen("no such host", 0)


def test_a_mac_refuses_a_port_that_another_program_has(monkeypatch):
    """One at all addresses, the other at one of them: there `bind` refuses neither."""
    monkeypatch.setattr(run_server.sys, "platform", "darwin")
    with listen("0.0.0.0", 0) as sock:
        port = sock.getsockname()[1]
        monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", port), listen("127.0.0.1", 0):
        pass


def test_what_is_written_is_sent_at_once():
    delays = []

    async def connected(reader, writer):
        sock = writer.get_extra_info("socket")
        delays.append(not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def run():
        sock = listen("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=sock):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(run())
    assert delays == [False]


def test_as_many_connections_as_the_system_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_connections()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert soft == min(before[1], 65_536) or (sys.platform == "darwin" and soft == 10_240)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_mac_allows_fewer_connections_than_it_says(monkeypatch):
    for most, soft, expected in ((61_440, 256, 10_240), (61_440, 20_000, 20_000), (100_000, 256, 65_536)):
        limits = [(soft, resource.RLIM_INFINITY)]

        def setrlimit(_, both, limits=limits, most=most):
            if both[0] > most:
                raise ValueError("current limit exceeds maximum limit")
            limits.append(both)

        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits[-1])
        monkeypatch.setattr(resource, "setrlimit", setrlimit)
        allow_connections()
        assert limits[-1] == (expected, resource.RLIM_INFINITY)


def test_what_is_not_about_completions(server):
    assert [each["id"] for each in server.get("/v1/models").json()["data"]] == ["fake", "other"]
    other = server.get("/v1/models/other").json()
    assert (other["id"], other["max_model_len"]) == ("other", 4096), "what a request may have"
    page = server.get("/docs").text
    assert "<td>list of ChatMessage<" in page and "<td>StreamOptions<" in page
    assert "/v1/completions" in page and "repetition_penalty" in page and "http" not in page.lower()
    document = server.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            about = escape(operation["description"])
            assert f"<h2><code>{method.upper()} {path}</code></h2><p>{about}</p>" in page
    assert "422" not in document["paths"]["/tokenize"]["post"]["responses"]
