"""Server-sent events in any cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tiny_llm_lab.load.sse import EventParser

STREAM = (
    b': keep-alive\n\ndata: {"a": 1}\n\nevent: error\ndata:{"b": 2}\r\n\r\n'
    b"id: 7\ndata: one\ndata: two\n\n\n: more\ndata: \xc3\xa9\n\ndata: [DONE]"
)
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"one\ntwo", b"\xc3\xa9", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_in_any_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = EventParser()
    seen = [data for start, end in pairwise(edges) for data in parser.feed(STREAM[start:end])]
    assert seen == EVENTS[:-1]
    assert list(parser.close()) == EVENTS[-1:]
    assert list(parser.close()) == []
