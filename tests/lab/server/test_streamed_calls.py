"""A call in each API while it is written: what the events add up to, after every piece of text."""

import json
import random
from itertools import pairwise

import pytest
from tests.helpers.json_values import made as some_json
from tests.helpers.parsed_text import XML, ToolCall, read, told
from tests.helpers.parsed_text import parser as new_parser
from tests.helpers.scripted_client import CALL, FLAT, HI, TOOL, streamed
from tests.helpers.streamed_calls import APIS
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ToolCallParser
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.routes.messages import ContentBlocks
from tiny_llm_lab.serving.server.routes.responses import OutputItems
from tiny_llm_lab.types import Completion, EngineOutput, Timing, TokenLogprobs

TEXT = f"A{CALL}B{CALL}"
ARGUMENTS = '{"city": "Köln"}'


def parser():
    return AnswerParser(None, ToolCallParser({"get": {}}))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("size", [1, 2, 5, 31, 1000])
def test_arguments_come_as_they_are_written(api, size):
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    so_far, told = "", []
    for piece, told in zip(pieces, api(pieces, parser()), strict=True):
        so_far += piece
        begun = so_far.split('"arguments": ')[1:]
        written = [text.partition("}")[0] + ("}" if "}" in text else "") for text in begun if text]
        # A key waits for its value.
        assert told == ["get:" + (text if ': "' in text else text[:1]) for text in written]
    assert told == [f"get:{ARGUMENTS}"] * 2


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_whole_answer_has_each_call_for_itself_and_a_score_for_each_token(size):
    tokenizer = ByteTokenizer()
    choice = ChatChoice(tokenizer, parser(), has_logprobs=True)
    made, blocks, items, scored = parser(), ContentBlocks(), OutputItems(), list[int]()
    for start in range(0, len(TEXT), size):
        piece = TEXT[start : start + size]
        done = Completion(0, 1, (), "", "stop", Timing(0.0)) if start + size >= len(TEXT) else None
        parts = made.feed(piece, None if done is None else done.finish_reason)
        _ = [*blocks.add(parts)], [*items.add(parts)]
        # A token is scored at once, whether its text is sent with it or later.
        chunk = choice.chunk(0, EngineOutput("r", (), piece, done, (TokenLogprobs(65, -1.0),)))
        scored.append(len(json.loads(chunk or b"null")["logprobs"]["content"]))
    _ = [*blocks.finish()], [*items.finish(is_complete=True)]
    assert scored == [1] * len(scored)
    inputs = [each["input"] for each in blocks.blocks if each["type"] == "tool_use"]
    arguments = [each["arguments"] for each in items.items if each["type"] == "function_call"]
    calls = [each["function"]["arguments"] for each in choice.whole(0)["message"]["tool_calls"]]
    assert (inputs, arguments, calls) == ([json.loads(ARGUMENTS)] * 2, [ARGUMENTS] * 2, [ARGUMENTS] * 2)


def test_text_and_calls_keep_their_order():
    for size in (7, 1000):
        made, blocks = parser(), ContentBlocks()
        for start in range(0, len(TEXT), size):
            for before, after in pairwise(blocks.add(made.feed(TEXT[start : start + size]))):
                assert before["index"] <= after["index"]
        assert [each["type"] for each in blocks.blocks] == ["text", "tool_use"] * 2


@pytest.mark.parametrize("cut", range(3, 60, 4))
def test_a_call_that_is_cut(server, cut, monkeypatch):
    """By max_tokens: a part of a call, however little of it there is, where it must be one."""
    monkeypatch.setattr(server.engine, "finish_reason", "length")
    server.engine.script, server.engine.stride = CALL[12:][:cut], 4
    arguments = CALL[12:][:cut].partition('"arguments": ')[2].removesuffix("\n")
    arguments = arguments if ": " in arguments else arguments[:1]
    must = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "reasoning_effort": "none"}
    must["model"] = "scripted"
    (choice,) = server.chat(**must).choices
    found = streamed(server.chat(**must, stream=True))
    (called,) = choice.message.tool_calls
    assert ["get", called.function.arguments] == found.calls[0]
    assert ARGUMENTS.startswith(called.function.arguments) and arguments.startswith(called.function.arguments)
    assert (found.content, found.reason, choice.finish_reason) == ("", "length", "length")
    assert not choice.message.content
    flat = {"input": "Hi", "tools": [FLAT], "tool_choice": "required", "reasoning": {"effort": "none"}}
    (item,) = server.refused("/responses", **flat).json()["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", called.function.arguments)
    tool = {"name": "get", "input_schema": {}}
    any_tool = {"max_tokens": 9, "messages": HI, "tools": [tool], "tool_choice": {"type": "any"}}
    done = server.refused("/messages", **any_tool).json()
    told = json.loads(ARGUMENTS) if called.function.arguments == ARGUMENTS else {}
    assert ([each["input"] for each in done["content"]], done["stop_reason"]) == ([told], "max_tokens")


STOPS = [
    ("get", "", False),
    ("city", "{", False),
    ("Kö", '{"city": "', False),
    ("öln", '{"city": "K', False),
    ('"}', '{"city": "Köln', False),
    ("}\n", ARGUMENTS, True),
    ("</tool_call>", ARGUMENTS, True),
]


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize(("stop", "arguments", "is_whole"), STOPS)
def test_a_stop_string_cuts_a_call(server, stop, arguments, is_whole, choice, monkeypatch):
    """A part of a call is not sent as a whole one, which a client would carry out."""
    start = CALL.index("{") if choice == "required" else 0
    text = CALL[start : CALL.index(stop, start)]
    monkeypatch.setattr(server.engine, "token_ids", tuple(server.encode(text + stop)))
    server.engine.script, server.engine.stride = text, 4
    asked = {"model": "scripted", "stop": [stop], "tool_choice": choice, "reasoning_effort": "none"}
    (whole,) = server.chat(messages=HI, tools=[TOOL], **asked).choices
    found = streamed(server.chat(messages=HI, tools=[TOOL], **asked, stream=True))
    calls = [["get", arguments]] if arguments or choice == "required" else []
    assert [[each.function.name, each.function.arguments] for each in whole.message.tool_calls or ()] == calls
    assert found.calls == calls
    assert whole.finish_reason == found.reason == ("tool_calls" if is_whole else "stop")
    answer = server.refused("/responses", input="Hi", tools=[FLAT], **asked).json()
    told = [(each["status"], each["arguments"]) for each in answer["output"] if "arguments" in each]
    assert told == [("completed" if is_whole else "incomplete", each) for _, each in calls]
    asked |= {"tool_choice": {"type": "any" if choice == "required" else "auto"}, "max_tokens": 9}
    tool = {"name": "get", "input_schema": {}}
    done = server.refused("/messages", messages=HI, tools=[tool], **asked).json()
    inputs = [each["input"] for each in done["content"] if each["type"] == "tool_use"]
    assert inputs == [json.loads(each) if is_whole else {} for _, each in calls]
    assert (done["stop_reason"], done["stop_sequence"]) == ("stop_sequence", stop)


def test_a_call_that_ends_between_its_name_and_its_arguments():
    for text, named, begun in ((XML, "<function=get>", "7"), (CALL, '"get"', "{")):
        start = text.index(named) + len(named)
        for at in range(start, text.index(begun, start) + 1):
            for finish, arguments in (("stop", "{}"), ("length", "")):
                found = read(new_parser(), [text[:at]], finish)
                assert (found.content, found.tool_calls) == ("", (ToolCall("get", arguments),)), text[:at]


@pytest.mark.parametrize("seed", range(200))
def test_arguments_come_while_they_are_written(seed):
    """In any layout of JSON, also of a call that is cut."""
    rng = random.Random(seed)
    value = {f"k{i}": some_json(rng) for i in range(rng.randrange(4))}
    indent, ascii_only = rng.choice((None, 0, 2)), rng.random() < 0.5
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    layout = rng.choice(('{{"name": "get", "arguments": {}}}', '\n{{ "name":"get" ,\n"parameters" :{} }}\n'))
    text = f"<tool_call>{layout.format(written)}</tool_call>"
    plain = json.dumps(value, ensure_ascii=ascii_only)
    assert read(new_parser(), [text]) == told("", plain)
    made, given = new_parser(), ""
    start = text.index(written)
    for at, char in enumerate(text[: start + len(written)], 1):
        given += "".join(part.text for part in made.feed(char) if part.kind == "arguments")
        assert plain.startswith(given)
        if indent is None:
            assert len(given) <= max(0, at - start) <= len(given) + 40, "what is held has an end"
        if at > start:
            assert read(new_parser(), [text[:at]], "length") == told("", given)
    assert given == plain


@pytest.mark.parametrize("seed", range(100))
def test_text_in_tags_comes_while_it_is_written(seed):
    rng = random.Random(seed)
    pieces = ("a", " < ", "\n", "<b>", "</b>", "\n\n", '"', "\\", "é", "</para", "<parameter=y>", "null")
    value = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40)))
    text = XML.replace("7", value)
    made, given = new_parser(), ""
    for at, char in enumerate(text):
        given += "".join(part.text for part in made.feed(char) if part.kind == "arguments")
        written = text[text.index("city>") + 6 : at + 1]
        if "\n</parameter>" not in written:
            assert len(json.dumps(written)) - len(given) < 60, "what may be a tag is held"
            cut = read(new_parser(), [text[: at + 1]], "length").tool_calls
            assert not cut or cut[0].arguments.startswith(given)
    assert json.loads(given) == {"city": value, "days": 3}
