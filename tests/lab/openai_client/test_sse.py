"""Server-sent events in any cut."""

import random
from itertools import pairwise

import pytest

from tiny_llm_lab.serving.openai_client import EventParser, with_key
from tiny_llm_lab.types import UserError

STREAM = (
    b': keep-alive\n\ndata: {"a": 1}\n\nevent: error\ndata:{"b": 2}\r\n\r\n'
    b"id: 7\ndata: one\ndata: two\n\n\n: more\ndata: \xc3\xa9\n\ndata: [DONE]"
)
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"one\ntwo", b"\xc3\xa9", b"[DONE]"]


def events_of(*cuts):
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    seen = [data for start, end in pairwise(edges) for data in parser.feed(STREAM[start:end])]
    assert seen == EVENTS[:-1]
    return [*seen, *parser.close(), *parser.close()]


def test_events_are_the_same_in_any_cut():
    rng = random.Random(1)
    for cut in range(len(STREAM)):
        assert events_of(cut) == EVENTS
    for _ in range(200):
        assert events_of(*rng.choices(range(len(STREAM)), k=12)) == EVENTS
    assert events_of(*range(len(STREAM))) == EVENTS


@pytest.mark.parametrize("key", ["\u201csk-1\u201d", "sk-1\n", "sk\x001", "schl\u00fcssel"])
def test_a_key_that_no_header_can_have(key):
    with pytest.raises(UserError, match="the API key has a line break, or a letter"):
        with_key(key)
