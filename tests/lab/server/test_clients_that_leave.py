"""Clients that vanish, read slowly or wait long: what they cost, and what others notice of them."""

import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
from unittest.mock import Mock

import httpx2
import pytest
from tests.helpers.fake_engine import FakeEngine, fake_server, raw_post, read_until, start_fake, wait_until

from tiny_llm_lab.serving.async_engine.engine import MAX_WAITING, RequestStream
from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.run_server import address, require_certificate, run_server, startup_line
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings
from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig, UserError


def serve_and(client, engine, drain_s, caplog, **given):
    """Run a server in this thread, and `client` with its port in another, until a signal ends the server."""
    failures = []

    def run_client():
        try:
            wait_until(lambda: "tiny-llm serves" in caplog.text)
            found = re.search(r"127\.0\.0\.1:(\d+)", caplog.text)
            assert found is not None
            client(int(found[1]))
        except BaseException as error:
            failures.append(error)
            engine.permit(10_000)  # the server ends now: a second signal would end the tests
            if "stopping" not in caplog.text:
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run_client)
    with caplog.at_level("INFO", "tiny_llm"):
        thread.start()
        settings = ServerSettings(port=0, drain_s=drain_s, **given)
        limits = RequestLimits(keep_alive_s=0)
        asyncio.run(run_server(lambda: start_fake(engine, limits), settings))
        thread.join()
    assert not failures, failures


LONG = {"prompt": "x", "max_tokens": 4000, "n": 3}
BY_HAND = RequestLimits(keep_alive_s=0)


def test_a_stream_whose_client_vanishes_ends_within_a_step(caplog):
    engine = FakeEngine(by_hand=True)
    with caplog.at_level("INFO", "tiny_llm.server"), fake_server(engine, limits=BY_HAND) as server:
        engine.permit(2)
        with raw_post(server.port, {**LONG, "stream": True}) as connection:
            assert b"text/event-stream" in read_until(connection, b"data:")
        wait_until(lambda: len(engine.aborted) == 3)
        assert engine.steps == 2 and not engine.has_requests
        wait_until(lambda: server.async_engine.num_requests == 0)
        wait_until(lambda: "499" in caplog.text)


def test_an_answer_in_one_piece_whose_client_vanishes_ends_within_a_step():
    engine = FakeEngine(by_hand=True)
    with fake_server(engine, limits=BY_HAND) as server:
        with raw_post(server.port, LONG):
            engine.permit(2)
            wait_until(lambda: engine.steps == 2)
        wait_until(lambda: len(engine.aborted) == 3)
        assert engine.steps == 2
        engine.permit(100)
        assert server.post("/v1/completions", prompt="x", max_tokens=2).json()["choices"][0]["text"] == "ab"


def test_half_of_many_clients_vanish_and_the_others_are_served():
    engine = FakeEngine(SchedulerConfig(max_num_seqs=4))
    body = {"prompt": "x", "max_tokens": 200, "stream": True}
    with fake_server(engine) as server:
        for number in range(40):
            with raw_post(server.port, body) as connection:
                if number % 2:
                    text = read_until(connection, b"[DONE]")
                    assert text.count(b'"finish_reason": "length"') == 1
        wait_until(lambda: server.async_engine.num_requests == 0 and not engine.has_requests)
        assert sum(count == 200 for count in engine.served.values()) >= 20


def test_a_reader_that_does_not_read_holds_up_nobody_and_takes_bounded_memory():
    engine = FakeEngine()
    long = {"prompt": "x", "max_tokens": 4000, "stream": True}
    with fake_server(engine) as server, raw_post(server.port, long) as slow:
        assert len(slow.recv(1)) == 1
        done = server.post("/v1/completions", prompt="x", max_tokens=300)
        assert done.status_code == 200
        wait_until(lambda: not engine.has_requests)
        rest = read_until(slow, b"[DONE]")
        assert rest.count(b'"finish_reason": "length"') == 1


def test_a_quiet_stream_is_kept_alive():
    engine = FakeEngine(by_hand=True)
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    limits = RequestLimits(keep_alive_s=0.02)
    with fake_server(engine, limits=limits) as server, raw_post(server.port, body) as connection:
        assert b"cached\n\n" in read_until(connection, b": prompt: 0 of 1 tokens, 0 cached\n\n")
        assert engine.steps == 0
        engine.permit()
        assert b'"text": "a"' in read_until(connection, b'"text": "a"')
        assert b": ping\n\n" in read_until(connection, b": ping\n\n"), "also behind its first token"
        engine.permit()
        assert b'"text": "b"' in read_until(connection, b"[DONE]")


def test_an_error_behind_the_last_output_is_told():
    async def run():
        changed = asyncio.Event()
        stream = RequestStream("x", changed)
        answers = Answers(Mock(picture_bytes=0), [stream], changed)
        stream.put(EngineOutput("x", (5,), "a"))
        stream.fail(RuntimeError("no memory"))
        assert [output.text for _, output in await anext(answers)] == ["a"]
        with pytest.raises(ApiError):
            await anext(answers)

    asyncio.run(run())


def test_an_answer_that_takes_too_long_is_ended():
    engine = FakeEngine(by_hand=True)
    with fake_server(engine, limits=RequestLimits(request_timeout_s=0.05)) as server:
        answer = server.post("/v1/completions", prompt="x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        wait_until(lambda: engine.aborted)
        engine.permit()
        with raw_post(server.port, {"prompt": "x", "stream": True}) as connection:
            text = read_until(connection, b"0\r\n\r\n")
        assert b'"code":"timeout"' in text and b"[DONE]" not in text


def test_a_full_queue_is_answered_with_429():
    engine = FakeEngine(SchedulerConfig(max_num_seqs=2), by_hand=True)
    with fake_server(engine, limits=RequestLimits(max_waiting=1, keep_alive_s=0)) as server:
        with raw_post(server.port, {**LONG, "stream": True}):
            wait_until(lambda: len(engine.requests) == 3)
            refused = server.post("/v1/completions", prompt="x")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert server.post("/v1/completions", prompt="x", n=4).status_code == 400, "it would never fit"
        wait_until(lambda: server.async_engine.num_requests == 0)
        engine.permit(1000)
        assert server.post("/v1/completions", prompt="x").status_code == 200


def test_a_request_beside_a_stream_is_in_the_next_step():
    engine = FakeEngine(by_hand=True)
    with fake_server(engine, limits=BY_HAND) as server:
        with raw_post(server.port, {**LONG, "n": 1, "stream": True}) as stream:
            engine.permit()
            read_until(stream, b"data:")
            with raw_post(server.port, {"prompt": "x", "max_tokens": 9, "stream": True}) as short:
                wait_until(lambda: len(engine.requests) == 2)
                engine.permit()
                assert b'"text": "a"' in read_until(short, b"}]")
        assert engine.steps == 2


def test_a_thousand_streams_are_served_evenly():
    async def read_all():
        engine = FakeEngine(SchedulerConfig(max_num_seqs=1000, max_num_batched_tokens=2048), by_hand=True)
        served = await start_fake(engine, RequestLimits(max_waiting=0))

        async def read(number):
            answers = await Answers.start(served, [[1]], SamplingParams(max_tokens=20), f"request-{number}")
            count = 0
            async for new in answers:
                count += sum(len(output.token_ids) for _, output in new)
            answers.close()
            return count

        reading = asyncio.gather(*map(read, range(1000)))
        while len(engine.requests) < 1000:
            await asyncio.sleep(0.001)
        engine.permit(20)
        counts = await reading
        assert engine.steps == 20, "they ran together"
        await served.engine.stop()
        return list(counts)

    assert asyncio.run(read_all()) == [20] * 1000


def test_what_waits_for_a_slow_reader_is_merged():
    stream, parts = RequestStream("x"), tuple((number,) for number in range(10_000))
    for part in parts:
        stream.put(EngineOutput("x", part, "ab", None, part, part, 16, part))
        assert stream.num_waiting <= MAX_WAITING
    whole = sum(parts, start=())
    assert stream.take() == EngineOutput("x", whole, "ab" * 10_000, None, whole, whole, 16, whole)


# From the start of a server to its end: the line it says, and the signals that stop it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_and_new_ones_are_refused(caplog, number):
    engine = FakeEngine(by_hand=True)

    def client(port):
        with raw_post(port, {"prompt": "x", "max_tokens": 3, "stream": True}) as running:
            engine.permit()
            read_until(running, b"data:")
            os.kill(os.getpid(), number)
            wait_until(lambda: "stopping: 1 request" in caplog.text)
            health = httpx2.get(f"http://127.0.0.1:{port}/health")
            refused = httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "x"})
            assert (health.status_code, refused.status_code) == (503, 503)
            engine.permit(2)
            assert b'"finish_reason": "length"' in read_until(running, b"[DONE]")

    serve_and(client, engine, 60, caplog)
    assert engine.steps == 3
    assert caplog.messages[-1] == "stopped"


def test_what_takes_longer_is_told_so(caplog):
    engine = FakeEngine(by_hand=True)

    def client(port):
        with raw_post(port, {"prompt": "x", "stream": True}) as running:
            wait_until(lambda: engine.requests)
            os.kill(os.getpid(), signal.SIGTERM)
            assert b'"code":"unavailable"' in read_until(running, b"0\r\n\r\n")

    serve_and(client, engine, 0.01, caplog)
    assert "1 request did not finish in time" in caplog.text


def test_a_second_signal_ends_the_process_at_once(caplog, monkeypatch):
    engine, codes = FakeEngine(by_hand=True), []
    monkeypatch.setattr(os, "_exit", codes.append)

    def client(port):
        with raw_post(port, {"prompt": "x", "max_tokens": 1, "stream": True}) as running:
            wait_until(lambda: engine.requests)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                wait_until(lambda: "stopping" in caplog.text)
            wait_until(lambda: codes)
            engine.permit()
            read_until(running, b"[DONE]")

    serve_and(client, engine, 60, caplog)
    assert codes == [128 + signal.SIGTERM]


def test_the_line_at_the_start():
    async def line(settings, num_ranks=1):
        engine = FakeEngine(SchedulerConfig(max_num_batched_tokens=512))
        served = await start_fake(engine, num_ranks=num_ranks)
        await served.engine.stop()
        return startup_line(served, address(settings, 8000))

    text = asyncio.run(line(ServerSettings()))
    assert "tiny-llm serves fake, other on http://127.0.0.1:8000 (this machine only)" in text
    assert "chunked prefill is on, 512 tokens a step · 1,024 KV blocks of 16 tokens (1.0 MiB)" in text
    assert "64 requests at a time" in text and "processes" not in text and "prefix cache is on" in text
    length = int(re.search(r"([0-9,]+) tokens each, of which ([0-9]+) fit", text)[1].replace(",", ""))
    assert f"of which {1024 * 16 // length} fit" in text
    assert text != (ranks := asyncio.run(line(ServerSettings(), 2))) and ranks.endswith(" · 2 processes")
    assert "other machines too, without a key" in asyncio.run(line(ServerSettings("0.0.0.0")))
    assert "https://[::1]:8000 (this" in asyncio.run(line(ServerSettings("::1", ssl_certfile="x")))
    assert "http://[::1]:8000 (this machine only)" in asyncio.run(line(ServerSettings("::1")))


# A server with TLS, and files with which it cannot begin


CONFIG = """\
[req]
prompt = no
distinguished_name = name
x509_extensions = more
[name]
CN = localhost
[more]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:TRUE
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates a and b with their keys, and the key of a with a password."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with the program openssl, which is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "config").write_text(CONFIG)
    run = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -config config -keyout {0}.key -out {0}.pem"
    locked = "openssl rsa -aes128 -passout pass:secret -in a.key -out locked.key"
    for command in (run.format("a"), run.format("b"), locked):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "a.key").read_text() + (folder / "a.pem").read_text())
    (folder / "locked.pem").write_text((folder / "locked.key").read_text() + (folder / "a.pem").read_text())
    return folder


@pytest.mark.parametrize("names", [("a.pem", "a.key"), ("both.pem", "")])
def test_a_server_with_a_certificate_answers_those_who_trust_it(folder, names, caplog):
    certificate, key = (str(folder / name) if name else "" for name in names)

    def client(port):
        try:
            trusting = ssl.create_default_context(cafile=folder / "a.pem")
            with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, timeout=60) as http:
                body = {"prompt": "x", "max_tokens": 2, "stream": True}
                assert "[DONE]" in http.post("/v1/completions", json=body).text
                assert http.get("/", headers={"Origin": f"https://127.0.0.1:{port}"}).status_code == 200
            with pytest.raises(httpx2.HTTPError, match="certificate verify failed"):
                httpx2.get(f"https://127.0.0.1:{port}/health", timeout=60)
            with pytest.raises(httpx2.HTTPError):
                httpx2.get(f"http://127.0.0.1:{port}/health", timeout=60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    serve_and(client, FakeEngine(), 0, caplog, ssl_certfile=certificate, ssl_keyfile=key)
    assert "on https://127.0.0.1:" in caplog.text


BAD_FILES = [
    ("", "a.key", "--ssl-keyfile needs --ssl-certfile"),
    ("no.pem", "a.key", "--ssl-certfile .*no.pem cannot be read .No such file"),
    ("a.pem", "no.key", "--ssl-keyfile .*no.key cannot be read .No such file"),
    ("a.pem", "b.key", "the key belongs to another certificate"),
    ("a.pem", "", "no certificate or no key"),
    ("a.key", "a.key", "no certificate or no key"),
    ("config", "a.key", "no certificate or no key"),
    ("a.pem", "locked.key", r"the key in .*locked\.key has a password: `openssl rsa"),
    ("locked.pem", "", r"the key in .*locked\.pem has a password: `openssl rsa"),
    (".", "a.key", "cannot be"),
]


@pytest.mark.parametrize(("certificate", "key", "says"), BAD_FILES)
def test_files_with_which_it_cannot_begin(folder, certificate, key, says):
    paths = {"ssl_certfile": certificate, "ssl_keyfile": key}
    given = {name: str(folder / path) if path else "" for name, path in paths.items()}
    with pytest.raises(UserError, match=says) as caught:
        require_certificate(ServerSettings(**given))
    assert "\n" not in str(caught.value) and ":" in str(caught.value)
