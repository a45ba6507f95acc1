"""The load client against scripted answers, in virtual time."""

import asyncio
import math
from itertools import pairwise
from statistics import fmean, pstdev
from unittest.mock import Mock

import pytest
from tests.helpers.fake_openai import DONE, FakeOpenAI, chat_chunk, sse, steady, text_chunk, usage_chunk
from tests.helpers.virtual_loop import run_virtual

from tiny_llm_lab.measure.load import client
from tiny_llm_lab.measure.load.client import Answer, LoadOptions, Usage, run_load
from tiny_llm_lab.measure.load.results.result import details, summarize
from tiny_llm_lab.measure.traffic.request import ArrivalSettings, LoadRequest, arrival_times
from tiny_llm_lab.runtime.metrics import tpot_s
from tiny_llm_lab.types import UserError

URL = "http://fake"


def requests(*arrivals):
    return [LoadRequest("once upon", 2, 4, arrival_s=arrival) for arrival in arrivals]


def load(server, given, **options):
    return run_virtual(run_load(URL, "m", given, LoadOptions(**options), transport=server))


def one(steps, **options):
    [record] = load(FakeOpenAI(lambda _: steps), requests(0.0), **options).records
    return record


def test_each_token_has_the_time_at_which_it_came():
    record = one(steady(3, ttft_s=0.5, itl_s=0.25))
    assert record.token_s == (0.5, 0.75, 1.0) and record.end_s == 1.0
    assert record.timing.ttft_s == 0.5 and record.timing.itl_s == [0.25, 0.25]
    assert record.error is None and record.finish_reason == "length" and record.text == " t0 t1 t2"
    assert record.usage == Usage(5, 3) and record.counted_by == "usage" and record.num_prompt_tokens == 5


def test_arrivals_do_not_wait_for_answers():
    run = load(FakeOpenAI(lambda _: steady(2, 10.0, 10.0)), requests(0.0, 1.0, 2.5))
    assert [record.send_s for record in run.records] == [0.0, 1.0, 2.5]
    assert run.total_s == 22.5 and run.max_send_delay_s == 0.0


def test_a_limit_of_concurrency_delays_the_send_and_shows_in_the_latency_from_arrival():
    run = load(FakeOpenAI(lambda _: steady(2, 1.0, 1.0)), requests(0.0, 0.0, 0.5), max_concurrency=1)
    assert [record.send_s for record in run.records] == [0.0, 2.0, 4.0]
    assert [record.timing.ttft_s for record in run.records] == [1.0, 1.0, 1.0]
    assert [record.timing_from_arrival.ttft_s for record in run.records] == [1.0, 3.0, 4.5]
    assert run.max_send_delay_s == 3.5


def test_what_is_sent():
    server = FakeOpenAI(lambda _: steady(1, 1.0, 1.0))
    options = {"ignore_eos": True, "api_key": "k", "body": {"temperature": 0.5}}
    load(server, [LoadRequest((1, 2, 3), 3, 4)], **options)
    [body], [headers] = server.bodies, server.headers
    assert body == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.5,
    }
    assert headers["authorization"] == "Bearer k" and server.paths == ["/v1/completions"]


def test_a_chat_sends_messages():
    server = FakeOpenAI(lambda _: [chat_chunk({"content": "a"}, "stop"), DONE])
    said = ({"role": "system", "content": "be brief"},)
    load(server, [*requests(0.0), LoadRequest("", 2, 4, messages=said)], endpoint="chat")
    assert [body["messages"] for body in server.bodies] == [
        [{"role": "user", "content": "once upon"}],
        [{"role": "system", "content": "be brief"}],
    ]
    with pytest.raises(UserError, match="a chat needs text"):
        load(server, [LoadRequest((1, 2), 2, 4)], endpoint="chat")


def test_the_role_of_a_chat_is_no_token_and_reasoning_is():
    role = chat_chunk({"role": "assistant", "content": ""})
    steps = [0.5, role, 0.5, chat_chunk({"reasoning_content": "a"}), 1.0, chat_chunk({}, "stop")]
    assert one([*steps, usage_chunk(4, 1), DONE], endpoint="chat").token_s == (1.0,)
    # The last token has no text: it is the end of the sequence.
    assert one([*steps, usage_chunk(4, 2), DONE], endpoint="chat").token_s == (1.0, 2.0)


def test_a_chunk_of_several_tokens_counts_them():
    steps = [1.0, text_chunk("one two"), 1.0, text_chunk(" six", "stop"), usage_chunk(2, 4), DONE]
    assert one(steps).token_s == (1.0, 1.0, 2.0, 2.0)
    [record] = run_virtual(
        run_load(
            URL,
            "m",
            requests(0.0),
            transport=FakeOpenAI(lambda _: [1.0, text_chunk("a b c"), 1.0, text_chunk(" d", "stop"), DONE]),
            count_tokens=lambda text: len(text.split()),
        )
    ).records
    assert record.token_s == (1.0, 1.0, 1.0, 2.0) and record.counted_by == "tokenizer"
    assert one([1.0, text_chunk("a b c"), text_chunk(" d", "stop"), DONE]).counted_by == "chunks"


def test_the_weights_of_all_chunks_are_added_once(monkeypatch):
    """Once for each chunk, that took seconds of the loop that takes the times."""
    added = Mock(side_effect=sum)
    monkeypatch.setattr(client, "sum", added, raising=False)
    words = [text_chunk(f" {number}") for number in range(9)]
    record = one([1.0, *words, text_chunk("end", "stop"), usage_chunk(2, 30), DONE])
    assert len(record.token_s) == 30 and added.call_count == 1


def test_cached_tokens_are_told():
    record = one([text_chunk("a", "stop"), usage_chunk(9, 1, cached_tokens=8), DONE])
    assert record.usage == Usage(9, 1, 8)


ERROR = {"error": {"message": "the engine\nfailed", "type": "server_error"}}


BAD_ANSWERS = [
    ([text_chunk("a"), sse(ERROR)], "the engine failed"),
    ([text_chunk("a")], "the stream ended before the answer did"),
    ([], "the stream ended before the answer did"),
    ([b"data: {broken\n\n"], "the server sent an event that is not a chunk: {broken"),
    ([b"data: [1]\n\n"], "the server sent an event that is not a chunk: [1]"),
    ([b'data: {"usage": {"completion_tokens": Infinity}}\n\n'], "an event that is not a chunk"),
    ([b"data: " + b"[" * 100_000 + b"\n\n"], "the server sent an event that is not a chunk"),
    ([b'data: {"choices": 3}\n\n'], "the server sent an event that is not a chunk"),
    ([b"data: " + b"x" * (5 * 2**20)], "the server sent an event of more than 4 MB"),
    ([text_chunk("a"), 1e4, DONE], "the answer did not end within 600 s"),
]


@pytest.mark.parametrize(("steps", "message"), BAD_ANSWERS)
def test_a_bad_answer_is_a_record_with_an_error(steps, message):
    run = load(FakeOpenAI(lambda number: steady(1, 1.0, 1.0) if number else steps), requests(0.0, 0.0))
    assert [record.error is None for record in run.records] == [False, True]
    assert message in str(run.failed[0].error)


def test_a_refused_request_tells_the_servers_message():
    refused = FakeOpenAI(lambda _: [b'{"error": {"message": "too long: shorten it"}}'], status=400)
    [record] = load(refused, requests(0.0)).records
    assert record.error == "HTTP 400: too long: shorten it" and record.token_s == ()
    [record] = load(FakeOpenAI(lambda _: [b"<html>no"], status=502), requests(0.0)).records
    assert record.error == "HTTP 502: <html>no"


def test_an_interrupted_run_keeps_what_came():
    seen = []

    async def interrupt():
        server = FakeOpenAI(lambda number: steady(3, 1.0, 1.0 + number))
        running = run_load(URL, "m", requests(0.0, 0.0, 99.0), transport=server, on_record=seen.append)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running, 3.5)

    run_virtual(interrupt())
    assert [(record.error, record.token_s) for record in seen] == [
        (None, (1.0, 2.0, 3.0)),
        ("interrupted", (1.0, 3.0)),
    ]


@pytest.mark.parametrize("url", ["fake", "ftp://fake", "http://", "http://[::1"])
def test_a_bad_url_is_named(url):
    with pytest.raises(UserError, match="is not a URL"):
        run_virtual(run_load(url, "m", requests(0.0)))


# What one read of a socket brings has one time: the load client on a real socket, its clock a counter


BURSTS, TOKENS = 3, 8


class CountingLoop(asyncio.SelectorEventLoop):
    """Its clock moves whenever it is read: two readings never give the same time."""

    _readings = 0

    def time(self):
        self._readings += 1
        return self._readings * 2.0**-20


def chunk_each(events):
    """An HTTP chunk for each event."""
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in events)


def one_chunk(events):
    """All events in one HTTP chunk."""
    return chunk_each([b"".join(events)])


async def answered(frame, bursts, received):
    """The run of one request, whose server writes a burst when the client has taken the one before it."""

    async def serve(reader, writer):
        await reader.readuntil(b'"once"}')
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for burst in bursts:
            writer.write(frame(burst))
            for _ in burst:
                await received.acquire()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await run_load(f"http://127.0.0.1:{port}", "m", [LoadRequest("once", 1, BURSTS * TOKENS)])


@pytest.mark.parametrize("frame", [chunk_each, one_chunk])
def test_tokens_of_one_read_have_one_time_and_no_gaps(frame, monkeypatch):
    received = asyncio.Semaphore(0)

    class Watched(Answer):
        def add(self, data, time_s):
            super().add(data, time_s)
            received.release()

    monkeypatch.setattr(client, "Answer", Watched)
    bursts = [[text_chunk(f" {burst}.{token}") for token in range(TOKENS)] for burst in range(BURSTS)]
    bursts.append([usage_chunk(1, BURSTS * TOKENS), DONE])
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        run = runner.run(answered(frame, bursts, received))
    [record] = run.records
    assert record.error is None and len(record.token_s) == BURSTS * TOKENS
    times = record.token_s
    assert [times.count(each) for each in sorted(set(times))] == [TOKENS] * BURSTS, "a time for each read"
    assert len(record.timing.itl_s) == BURSTS - 1 and min(record.timing.itl_s) > 0
    assert tpot_s(record.timing) == (times[-1] - times[0]) / (BURSTS * TOKENS - 1)
    assert summarize(run, [50, 99])["median_itl_ms"] > 0 and details(run)["itls"] == [record.timing.itl_s]


# When requests arrive


def gaps(count, seed=1, **settings):
    times = arrival_times(count, ArrivalSettings(**settings), seed)
    assert len(times) == count and times[0] == 0.0
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_spread_that_was_asked_for(burstiness):
    each = gaps(4001, request_rate=5.0, burstiness=burstiness)
    assert fmean(each) == pytest.approx(1 / 5)
    # The standard deviation of a gamma distribution over its mean.
    assert pstdev(each) / fmean(each) == pytest.approx(burstiness**-0.5, rel=0.08)


def test_fixed_intervals_and_all_at_once():
    assert gaps(5, request_rate=4.0, burstiness=math.inf) == [0.25] * 4
    assert gaps(5) == [0.0] * 4


RAMPS = [("linear", [1.0, 4.5, 8.0]), ("exponential", [1.0, 8**0.5, 8.0])]


@pytest.mark.parametrize(("strategy", "rates"), RAMPS)
def test_a_ramp_goes_from_the_first_rate_to_the_last(strategy, rates):
    ramp = {"ramp_up_strategy": strategy, "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
    each = gaps(4, burstiness=math.inf, **ramp)
    assert each == pytest.approx([1 / rate for rate in rates])


def test_a_single_request_and_none():
    assert arrival_times(1, ArrivalSettings(request_rate=2.0), 0) == [0.0]
