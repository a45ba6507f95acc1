"""Messages between processes: whole and in order, however they are cut and however slowly they are read."""

import random
import socket
import threading

import pytest

from tiny_llm_lab.serving.async_engine.wire import Unpacker, Wire, packed, portable
from tiny_llm_lab.types import UserError


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


def test_sending_does_not_wait_for_the_reader_and_keeps_the_order():
    left, right = socket.socketpair()
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
