"""An answer's text becomes reasoning, content and tool calls, however it is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_lab.server.chat.answer_parser import AnswerParser
from tiny_llm_lab.server.chat.parsed import ParsedText, ToolCall
from tiny_llm_lab.server.chat.reasoning import ReasoningParser
from tiny_llm_lab.server.chat.tool_calls import ToolCallParser

SCHEMAS = {"get": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
XML = """\
<tool_call>
<function=get>
<parameter=city>
7
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", CALL, XML, '{"name": "get"}', '{"name": "a'),
    *("<", "</", "<tool", "_call>", "think>", " ", "\n", "x", '"}', "é", "<function=get>"),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
some = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def parser(is_thinking: bool = False, is_call: bool = False) -> AnswerParser:
    return AnswerParser(ReasoningParser(is_thinking), ToolCallParser(SCHEMAS, is_call))


def read(made: AnswerParser, pieces: list[str]) -> ParsedText:
    """What the pieces are together."""
    found = [made.feed(piece) for piece in pieces] + [made.feed("", is_last=True)]
    return ParsedText(
        "".join(each.reasoning for each in found),
        "".join(each.content for each in found),
        tuple(call for each in found for call in each.tool_calls),
    )


def call(name: str = "get", **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


@some
@given(texts, st.lists(st.integers(0, 60), max_size=6), st.booleans(), st.booleans())
def test_every_way_to_cut_a_text_gives_the_same(
    text: str, places: list[int], is_thinking: bool, is_call: bool
) -> None:
    cuts = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    whole = read(parser(is_thinking, is_call), [text])
    assert read(parser(is_thinking, is_call), pieces) == whole
    assert read(parser(is_thinking, is_call), list(text)) == whole


@some
@given(texts)
def test_nothing_is_lost_of_what_is_no_call(text: str) -> None:
    found = read(AnswerParser(None, ToolCallParser(SCHEMAS)), [text])
    if not found.tool_calls:
        assert found.content == text
    assert read(AnswerParser(None, None), [text]).content == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello", ParsedText("", "Hello")),
        ("<think>\nWell.\n</think>\n\nHello", ParsedText("Well.", "Hello")),
        (" \n<think></think>Hello ", ParsedText("", "Hello ")),
        ("<think>no end \n", ParsedText("no end", "")),
        ("a <think>b</think>", ParsedText("", "a <think>b</think>")),
        (f"<think>a</think>\n{CALL}", ParsedText("a", "", (call(city="Köln"),))),
        (f"{CALL}\n{CALL}\n", ParsedText("", "", (call(city="Köln"),) * 2)),
        (f"One moment.\n{CALL}", ParsedText("", "One moment.\n", (call(city="Köln"),))),
        (f"{CALL}\nDone", ParsedText("", "\nDone", (call(city="Köln"),))),
        (XML, ParsedText("", "", (call(city="7", days=3),))),
        ('<tool_call>{"name": "get"}', ParsedText("", "", (call(),))),
        ("<tool_call>get it</tool_call>", ParsedText("", "<tool_call>get it</tool_call>")),
        ('<tool_call>{"name": 7}</tool_call> ', ParsedText("", '<tool_call>{"name": 7}</tool_call> ')),
        ("<tool_call><function=get>\nx</function></tool_call>", None),
        ('<tool_call>{"name": "get", "arguments": {"a": NaN}}</tool_call>', None),
        ('<tool_call>{"name": "get", "arg', None),
        (
            '<tool_call>{"name": "say", "arguments": {"a": "</tool_call>"}}</tool_call>',
            ParsedText("", "", (call("say", a="</tool_call>"),)),
        ),
    ],
)
def test_what_a_text_is(text: str, found: ParsedText | None) -> None:
    assert read(parser(), [text]) == (found or ParsedText("", text))


def test_a_call_comes_as_soon_as_it_ends_and_words_at_once() -> None:
    made = parser()
    assert made.feed("Hello <b").content == "Hello <b"
    assert made.feed(" <tool").content == " "
    assert made.feed("s> ").content == "<tools> "
    assert not made.feed(CALL[:-1]).tool_calls
    assert made.feed(CALL[-1:]).tool_calls == (call(city="Köln"),)


def test_prompts_may_end_in_thoughts_or_in_a_call() -> None:
    assert read(parser(is_thinking=True), ["a</think>b"]) == ParsedText("a", "b")
    forced = AnswerParser(None, ToolCallParser(SCHEMAS, is_open=True))
    assert read(forced, ['{"name": "get"}']) == ParsedText("", "", (call(),))
    cut_off = AnswerParser(None, ToolCallParser(SCHEMAS, is_open=True))
    assert read(cut_off, ['{"name": "g']) == ParsedText("", '{"name": "g')
