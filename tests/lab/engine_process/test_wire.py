"""Messages between processes: whole and in order, however they are cut and however slowly they are read."""

import random
import socket
import threading

import pytest

from tiny_llm_lab.serving.async_engine import wire
from tiny_llm_lab.serving.async_engine.messages import (
    Abort,
    CacheCounts,
    DraftCounts,
    Produced,
    Stepped,
    StepReport,
)
from tiny_llm_lab.serving.async_engine.wire import (
    FollowingInbox,
    LeadingInbox,
    Unpacker,
    Wire,
    packed,
    portable,
)
from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    EngineOutput,
    PrefillEvent,
    StepPlan,
    StepStats,
    Timing,
    TokenEvent,
    TokenLogprobs,
    UserError,
)
from tiny_llm_lab.types.scheduling.no_prefix_disk import DiskCounts


def messages(draw, count):
    sizes = [draw.choice([0, 1, 7, 1000, 70_000]) for _ in range(count)]
    return [{"number": number, "bytes": draw.randbytes(size)} for number, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", range(5))
def test_messages_come_whole_whatever_the_pieces(seed):
    draw = random.Random(seed)
    sent = messages(draw, 40)
    stream = b"".join(map(packed, sent))
    unpacker, read, start = Unpacker(), list[object](), 0
    while start < len(stream):
        size = draw.choice([1, 2, 8, 9, 1000, 100_000])
        read += unpacker.add(stream[start : start + size])
        start += size
    assert read == sent


def test_steps_are_equal_on_the_other_side():
    token, chunk = TokenEvent(3, 7, "a", 1.5), PrefillEvent(3, 16, 20, 1.0)
    tail, done = TokenEvent(3, None, "b", 2.0), Completion(3, 20, (7,), "ab", "stop", Timing(0.0, (1.5,)))
    scores = (TokenLogprobs(7, -0.5, ((7, -0.5),)),)
    outputs = [
        EngineOutput("plain", (7,), "a", events=(token,), num_cached_tokens=16),
        EngineOutput("first", (7,), "a", events=(chunk, token)),
        EngineOutput("two", (7, 7), "aa", events=(token, token)),
        EngineOutput("scored", (7,), "a", None, scores, (token,)),
        EngineOutput("asked", (7,), "a", events=(token,), prompt_logprobs=(None, *scores)),
        EngineOutput("tail", (), "b", events=(tail,)),
        EngineOutput("chunk", (), "", events=(chunk,)),
        EngineOutput("done", (7,), "ab", done, (), (token, tail, DoneEvent(done)), 16),
        EngineOutput("ended", (), "", done, (), (DoneEvent(done),)),
        EngineOutput("fake", (7,), "a"),
    ]
    stats, counts = StepStats(1.0, 2.0, 3, 4, 5, 6), (CacheCounts(*range(6)), DraftCounts(*range(3)))
    report = StepReport(
        StepPlan({"a": 1}, ("b",)), stats, 256, (("a", 1, 16),), *counts, DiskCounts(*range(7))
    )
    sent = [Stepped(report), Produced(outputs), Produced([]), *(Produced([each]) for each in outputs)]
    assert list(Unpacker().add(packed(sent))) == [sent]


def test_all_commands_so_far_are_taken_at_once_on_every_rank():
    left, right = socket.socketpair()
    with left, right:
        leader, follower = LeadingInbox([Wire(left)]), FollowingInbox(Wire(right))
        for waits, names in ((False, "abc"), (True, "de"), (True, "")):
            for name in names:
                leader.put(Abort((name,)))
            wanted = [Abort((name,)) for name in names]
            assert leader.take(waits, timeout_s=0) == wanted == follower.take(waits, timeout_s=0)


class MacSocket(socket.socket):
    """Waits when it is full, whatever the flags, as on macOS."""

    def send(self, data, flags=0):
        return super().send(data)


@pytest.mark.parametrize("kind", [socket.socket, MacSocket])
def test_sending_does_not_wait_for_the_reader_and_keeps_the_order(kind, monkeypatch):
    monkeypatch.setattr(wire.sys, "platform", "darwin" if kind is MacSocket else "linux")
    left, right = (kind(fileno=each.detach()) for each in socket.socketpair())
    with left, right:
        ours, theirs = Wire(left), Wire(right)
        sent = messages(random.Random(0), 400)  # 5 MB, more than a socket holds
        for each in sent:
            ours.send(each)
        read = []
        reader = threading.Thread(target=lambda: read.extend(theirs.receive() for _ in sent))
        reader.start()
        ours.flush()
        reader.join()
    assert read == sent


def test_an_end_that_closes_is_told_to_the_reader_and_ignored_by_the_sender():
    left, right = socket.socketpair()
    with left, right:
        ours, theirs = Wire(left), Wire(right)
        theirs.send("last")
        right.shutdown(socket.SHUT_RDWR)
        assert ours.receive() == "last"
        with pytest.raises(EOFError):
            ours.receive()
        for _ in range(100):
            ours.send(bytes(100_000))
        ours.flush()


class UnreadableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_every_error_can_cross():
    known = UserError("choose another")
    assert portable(known) is known
    assert repr(portable(UnreadableError("no", "memory"))) == "RuntimeError('UnreadableError: no memory')"
