"""Clients that vanish, read slowly or wait long: what they cost, and what others notice of them."""

import asyncio

import pytest
from tests.helpers.fake_engine import FakeEngine, fake_server, raw_post, read_until, start_fake, wait_until

from tiny_llm_lab.serving.async_engine.engine import MAX_WAITING, RequestStream
from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.settings import RequestLimits
from tiny_llm_lab.types import EngineOutput, SamplingParams, SchedulerConfig

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
        assert b": ping\n\n" in read_until(connection, b": ping\n\n")
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
        answers = Answers(None, [stream], changed)
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
    stream = RequestStream("x")
    for number in range(10_000):
        stream.put(EngineOutput("x", (number,), "ab"))
        assert stream.num_waiting <= MAX_WAITING
    output = stream.take()
    assert output.token_ids == tuple(range(10_000)) and output.text == "ab" * 10_000
