"""An answer's text becomes reasoning, content and tool calls, however it is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.helpers.parsed_text import CALL, SCHEMAS, XML, ParsedText, call, parser, read, told

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, Part, ToolCallParser

BARE = XML.removeprefix("<tool_call>\n")
BOTH = told("", '{"city": "7", "days": 3}')
CITY = '{"city": "Köln"}'
CLOSED = '{"a": "</tool_call>"}'
JSON_LINES = '<tool_call>{"name": "get", "arguments": {"city": "a\nb\t"}}</tool_call>'
JSON_LINES_TOLD = r'{"city": "a\nb\t"}'
VALUES = ("a</parameter>b", "</tool_call>\n<tool_call>", "x\n<parameter=y>\n</function>\n", "<function=get>")
FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", CALL, XML, '{"name": "get"}', '{"name": "a'),
    *("<", "</", "<tool", "_call>", "think>", " ", "\n", "x", '"}', "é", "<function=get>", BARE),
    *('{"name": "get", "parameters": {"city": "', "; ", "{", "}}"),
    *("</function>", "\n<parameter=city>", "\n<parameter=", "days>", "</parameter>", "\n<function=get>"),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
PHASES = [Phase.generate]  # shrinking a failure would take a minute
some = settings(max_examples=300, deadline=None, derandomize=True, database=None, phases=PHASES)


@some
@given(texts, st.lists(st.integers(0, 60), max_size=6), st.tuples(*[st.booleans()] * 3))
def test_every_way_to_cut_a_text_gives_the_same(text, places, kind):
    cuts = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    whole = read(parser(*kind), [text])
    assert read(parser(*kind), pieces) == whole
    assert read(parser(*kind), list(text)) == whole


@some
@given(texts)
def test_nothing_is_lost_of_what_is_no_call(text):
    found = read(AnswerParser(None, ToolCallParser(SCHEMAS)), [text])
    if not found.tool_calls:
        assert found.content == text
    assert read(AnswerParser(None, None), [text]).content == text


TEXTS = [
    ("Hello", ParsedText("", "Hello")),
    ("<think>\nWell.\n</think>\n\nHello", ParsedText("Well.", "Hello")),
    (" \n<think></think>Hello ", ParsedText("", "Hello ")),
    ("<think>no end \n", ParsedText("no end", "")),
    ("a <think>b</think>", ParsedText("", "a <think>b</think>")),
    ("<think>\n<think> <think>a</think>b", ParsedText("a", "b")),
    ("<think><think", ParsedText("<think", "")),
    (f"<think>a\n{CALL}", ParsedText(f"a\n{CALL}", "", (call(city="Köln"),))),
    (f"<think>{CALL}\n{XML}\n", ParsedText(f"{CALL}\n{XML}", "", (call(city="Köln"), *BOTH.tool_calls))),
    (f"<think>a{CALL} maybe", ParsedText(f"a{CALL} maybe", "")),
    (f"<think>a{CALL}</think>b", ParsedText(f"a{CALL}", "b")),
    ("<think>a<tool_call>b</tool_call>", ParsedText("a<tool_call>b</tool_call>", "")),
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
    ('<tool_call>{"name": "get", "arg', told("", "{}")),
    ('<tool_call>{"name": "other", "arg', None),
    *(
        (f'<tool_call>{{"name": "get", "arguments": {written}}}</tool_call>', told("", read))
        for written, read in (
            ('{"a": NaN, "b": -Infinity}', '{"a": null, "b": null}'),
            ('{"a":1e999,}', '{"a": 1e999}'),
            ("{city: Köln}", CITY),
            ("{'city': 'K\\'s \"ö\"', 'b': True}", r"""{"city": "K's \"ö\"", "b": true}"""),
            ("{ }", "{}"),
            ('{"a": {"b": [1, [2}, "c": 3}', '{"a": {"b": [1, [2]]}, "c": 3}'),
            ('{"a": {}, "a": {}}', '{"a": {}, "a": {}}'),
            (r'{"a": "\\\"}</tool_call>"}', r'{"a": "\\\"}</tool_call>"}'),
            (r'{"a": "\d\u00e9\u12"}', r'{"a": "\\d\u00e9\\u12"}'),
            ('{"a": [1, {"b" 3 "c": x y}, "d": 012}', '{"a": [1, {"b": 3, "c": "x y"}, "d", "012"]}'),
        )
    ),
    (JSON_LINES, told("", JSON_LINES_TOLD)),
    ('<tool_call>{{"name": "get", "arguments": {"city": "Köln"}}}</tool_call>', told("", CITY)),
    ('<tool_call>{{"name": "get", "arguments": null}}</tool_call>', told("", "{}")),
    ('<tool_call>{"name": "get", "arguments": {"city": "Köln"}}}\n</tool_call>', told("", CITY)),
    ('<tool_call>{"arguments": {"city": "Köln"}, "name": "get"}</tool_call>', told("", CITY)),
    ('<tool_call>{"name": "get", "arguments": {"city": "Köln"}, "a": "}"}</tool_call>b', told("b", CITY)),
    ('<tool_call>{"name": "get", "arguments": {"city": "Köln"}}\nDone', told("Done", CITY)),
    (f'<tool_call>{{"name": "get", "arguments": {json.dumps(CITY)}}}</tool_call>', told("", CITY)),
    ('<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "get"}</tool_call>', told("", CLOSED)),
    ('<tool_call>{"name": "get", "arguments": ""}</tool_call>', told("", "{}")),
    ('<tool_call>{"name": "get", "arguments": "Köln"}</tool_call>', None),
    ('<tool_call>{"name": "get", "arguments": {"city": "Kö', told("", '{"city": "Kö"}')),
    (
        '<tool_call>{"name": "say", "arguments": {"a": "</tool_call>"}}</tool_call>',
        ParsedText("", "", (call("say", a="</tool_call>"),)),
    ),
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
    (XML.replace("3\n</parameter>\n</function>", "3"), BOTH),
    (XML[: XML.index("\n<parameter=days")], told("", '{"city": "7"}')),
    (BARE[: BARE.index("\n<parameter=days")], told("", '{"city": "7"}')),
    (BARE[: BARE.index("\n</parameter")], told("", '{"city": "7"}')),
    (XML.replace("</function>", "so\n</function>"), BOTH),
]


@pytest.mark.parametrize(("text", "found"), TEXTS)
def test_what_a_text_is(text, found):
    for size in (len(text), 1, 3, 7):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(parser(), pieces) == (found or ParsedText("", text))


def test_words_come_at_once():
    made = parser()
    for piece, content in (("Hello <b", "Hello <b"), (" <tool", " "), ("s> ", "<tools> ")):
        assert made.feed(piece) == [Part("content", content)]


def test_prompts_may_end_in_thoughts_or_in_a_call():
    for text in ("a</think>b", "<think>a</think>b"):
        assert read(parser(is_thinking=True), [text]) == ParsedText("a", "b")
    for text, found in (
        ('{"name": "get"}', ParsedText("", "", (call(),))),
        ('{"name": "get", "arguments": {"ci', told("", "{}")),
        ('{"name": "g', told("", "")),
    ):
        assert read(AnswerParser(None, ToolCallParser(SCHEMAS, is_open=True)), [text]) == found
    several = AnswerParser(None, ToolCallParser({**SCHEMAS, "go": {}}, is_open=True))
    assert read(several, ['{"name": "g']) == ParsedText(), "its function is not known"


def test_one_call_may_be_all_that_is_wanted():
    made = AnswerParser(None, ToolCallParser(SCHEMAS), is_one_call=True)
    assert read(made, list(f"a{CALL}{XML}b")) == ParsedText("", "ab", (call(city="Köln"),))


LLAMA = '{"name": "get", "parameters": {"city": "Köln"}}'


UNTAGGED = [
    (LLAMA, "", [call(city="Köln")]),
    (f"\n\n<|python_tag|>{LLAMA}", "", [call(city="Köln")]),
    (f"{LLAMA}; {LLAMA}", "", [call(city="Köln")] * 2),
    (f"{LLAMA}\n{LLAMA}\n", "", [call(city="Köln")] * 2),
    (f"{LLAMA}\n\nIt rains.", "It rains.", [call(city="Köln")]),
    ('{ "name":"get","arguments":{"days":3}}', "", [call(days=3)]),
    (CALL, "", [call(city="Köln")]),
    (f"It rains. {LLAMA}", f"It rains. {LLAMA}", []),
    ('{"name": "put", "parameters": {}}', '{"name": "put", "parameters": {}}', []),
    ('{"name": "Köln", "size": 3}', '{"name": "Köln", "size": 3}', []),
    ('  {"names": []}', '  {"names": []}', []),
    ('{"name": "ge', '{"name": "ge', []),
    ('{"name": "' + "x" * 500, '{"name": "' + "x" * 500, []),
    ("; {}", "; {}", []),
    ("<|python", "<|python", []),
    ("", "", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), UNTAGGED)
def test_a_model_that_writes_calls_without_tags(text, content, calls):
    for pieces in ([text], [*text], *([text[:at], text[at:]] for at in range(1, len(text)))):
        made = AnswerParser(None, ToolCallParser(SCHEMAS, may_be_bare=True))
        assert read(made, pieces) == ParsedText("", content, tuple(calls)), pieces
    if LLAMA in text:
        tagged = read(AnswerParser(None, ToolCallParser(SCHEMAS)), [text])
        assert not tagged.tool_calls, "other models write JSON as an answer"
