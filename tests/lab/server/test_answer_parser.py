"""An answer's text becomes reasoning, content and tool calls, however it is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser
from tiny_llm_lab.serving.server.chat.tool_calls import ParsedText, ToolCall, ToolCallParser

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
BARE = XML.removeprefix("<tool_call>\n")
BOTH = ParsedText("", "", (ToolCall("get", '{"city": "7", "days": 3}'),))
VALUES = ("a</parameter>b", "</tool_call>\n<tool_call>", "x\n<parameter=y>\n</function>\n", "<function=get>")
FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", CALL, XML, '{"name": "get"}', '{"name": "a'),
    *("<", "</", "<tool", "_call>", "think>", " ", "\n", "x", '"}', "é", "<function=get>", BARE),
    *("</function>", "\n<parameter=city>", "\n<parameter=", "days>", "</parameter>", "\n<function=get>"),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
PHASES = [Phase.generate]  # shrinking a failure would take a minute
some = settings(max_examples=300, deadline=None, derandomize=True, database=None, phases=PHASES)


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
        (f"a{CALL}\n{CALL}\n", ParsedText("", "a", (call(city="Köln"),) * 2)),
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
        ('<tool_call>{"name": "get", "arguments": {"a": 1e999}}</tool_call>', None),
        (BARE, BOTH),
        (BARE.removesuffix("\n</tool_call>"), BOTH),
        (f"One moment.\n {BARE}\n{XML}\n", ParsedText("", "One moment.\n ", BOTH.tool_calls * 2)),
        (BARE.replace("</function>\n</tool_call>", XML), ParsedText("", "", BOTH.tool_calls * 2)),
        (BARE.replace("\n</parameter>\n</function>", "\n</function>"), BOTH),
        (XML.replace("\n</parameter>\n</function>", "\n</function>"), BOTH),
        (XML.replace("7\n</parameter>", "7"), BOTH),
        (XML.replace("</parameter>\n<parameter=days>\n3\n", ""), ParsedText("", "", (call(city="7"),))),
        (f"<function=get> is it\n{CALL}", ParsedText("", "<function=get> is it\n", (call(city="Köln"),))),
        *(
            (shell.replace("7", value), ParsedText("", "", (call(city=value, days=3),)))
            for shell in (XML, BARE)
            for value in VALUES
        ),
        ("I call <function=get>\n</function>", None),
        ("<function=other>\n</function>\n</tool_call>", None),
        (XML.replace("3\n</parameter>\n</function>", "3"), None),
        (XML[: XML.index("\n<parameter=days")], None),
        (BARE[: BARE.index("\n<parameter=days")], None),
        (XML.replace("</function>", "so\n</function>"), None),
    ],
)
def test_what_a_text_is(text: str, found: ParsedText | None) -> None:
    for size in (len(text), 1, 3, 7):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(parser(), pieces) == (found or ParsedText("", text))


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
