"""What one read of a socket brings has one time: the load client on a real socket, its clock a counter."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.helpers.fake_openai import DONE, text_chunk, usage_chunk

from tiny_llm_lab.measure.load import client
from tiny_llm_lab.measure.load.client import Answer, run_load
from tiny_llm_lab.measure.load.results.result import details, summarize
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.runtime.metrics import tpot_s

BURSTS, TOKENS = 3, 8
Frame = Callable[[Sequence[bytes]], bytes]


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
