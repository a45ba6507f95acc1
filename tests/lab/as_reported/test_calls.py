"""Calls of tools that a model writes wrong, or does not end."""

import json
import random
import re

import pytest
from tests.helpers.edited_calls import TAGS, call_text, edited
from tests.helpers.parsed_text import ParsedText, parser, read
from tests.helpers.streamed_calls import APIS

TAG = re.compile(r"</?(?:tool_call|function|parameter)\b[^<>\n]*>")
STRIDES = (1, 2, 3, 7, 19)
HEAD = "<tool_call>\n<function=get>\n<parameter=city>\n"
REST = "</parameter>\n</function>\n</tool_call>"
# What follows the beginning of the first value, and the arguments at a stop; None: all of it is the value.
WRITTEN = [
    ("vllm PR40861", "abc", '{"city": "abc"}'),
    ("vllm PR40861", "abc\n</para", '{"city": "abc"}'),
    ("vllm PR40861", "abc\n</parameter>\n<parameter=days>\n3", '{"city": "abc", "days": 3}'),
    ("vllm PR40861", "abc\n</parameter>\n<parameter=days>\n", '{"city": "abc"}'),
    ("vllm#55495", f"x\n</parameter>\n<parameter=\necho hi\n{REST}", '{"city": "x"}'),
    ("vllm#55495", f"x\n</parameter>\n<parameter=days\n3\n{REST}", '{"city": "x"}'),
    ("vllm#55495", f"x\n</parameter>\n<parameter>\n3\n{REST}", '{"city": "x"}'),
    ("vllm#55495", f"x\n</parameter>\n<parameter\n{REST}", '{"city": "x"}'),
    ("vllm#55495", f"x\n</paramter>\n<parameter=days>\n3\n{REST}", '{"city": "x", "days": 3}'),
    ("vllm#55495", f"x\n</parameter>\n<paramter=days>\n3\n{REST}", '{"city": "x", "days": 3}'),
    ("vllm#55495", f"x\n</parameter>\nso\n<parameter=days>\n3\n{REST}", '{"city": "x", "days": 3}'),
    ("vllm#55495", "x\n</parameter>\n</functon>\n</tool_call>", '{"city": "x"}'),
    ("vllm#55495", "x\n</function>\n</parameter>\n</tool_call>", '{"city": "x"}'),
    ("vllm#55495", f"see <parameter=x>\n{REST}", '{"city": "see <parameter=x>"}'),
    ("vllm#55495", f"a\n<parameter=x>\n1\n</parameter>\nb\n{REST}", None),
    ("vllm#55495", f"</tool_call>\n<tool_call>\n{REST}", None),
    ("quoted", f'x\n</parameter>\n<parameter="days">\n3\n{REST}', '{"city": "x", "days": 3}'),
    ("quoted", f"x\n</parameter>\n<parameter name='days'>\n3\n{REST}", '{"city": "x", "days": 3}'),
    ("twice", f"x\n</parameter>\n<parameter=city>\ny\n{REST}", '{"city": "x"}'),
    ("twice", f"<parameter=city>\nx\n{REST}", '{"city": "x"}'),
]


@pytest.mark.parametrize(("source", "written", "arguments"), WRITTEN)
def test_a_call_as_written(source, written, arguments):
    text = HEAD + written
    (found,) = read(parser(), [text]).tool_calls
    whole = json.dumps({"city": written.removesuffix(f"\n{REST}")})
    assert found.arguments == (arguments or whole), source
    assert all(read(parser(), pieces(text, size)).tool_calls == (found,) for size in STRIDES)
    cut = read(parser(), [text], "length").tool_calls[0].arguments
    assert found.arguments.startswith(cut)


@pytest.mark.parametrize("name", ['"get"', "'get'", " get", "get "])
def test_the_name_of_a_function_may_be_quoted(name):
    for head in (f"<function={name}>", f"<function name={name}>"):
        text = f"<tool_call>\n{head}\n<parameter=city>\nx\n{REST}"
        assert [each.name for each in read(parser(), [text]).tool_calls] == ["get"]


def pieces(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def texts_of(value):
    if isinstance(value, str):
        yield value
    for each in (
        value if isinstance(value, list) else (*value, *value.values()) if isinstance(value, dict) else ()
    ):
        yield from texts_of(each)


def check_edited(seed, num_edits=1):
    """Whether no value has a tag: none had one before the edit."""
    rng = random.Random(seed)
    text = call_text(rng, rng.random() < 0.4)
    for _ in range(num_edits):
        text = edited(rng, text) if len(TAGS.findall(text)) > 2 else text
    for reason in ("stop", "length"):
        whole = read(parser(), [text], reason)
        assert all(read(parser(), pieces(text, size), reason) == whole for size in STRIDES), (seed, text)
        if reason == "stop":
            values = [json.loads(each.arguments) for each in whole.tool_calls]
    return not any(TAG.search(each) for each in texts_of(values))


def test_an_edited_call_is_whole_and_has_no_tags_in_its_values():
    assert all(map(check_edited, range(150)))


@pytest.mark.long
def test_many_edited_calls_are_whole():
    """A value has a tag in it where two characters far from each other changed places in two tags."""
    assert sum(not check_edited(seed) for seed in range(20_000)) <= 4
    assert sum(not check_edited(seed, 3) for seed in range(2_000)) <= 20


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_all_apis_stream_the_same_call(finish):
    for seed in range(12):
        rng = random.Random(seed)
        text = edited(rng, call_text(rng, seed % 2 == 0))
        whole: ParsedText = read(parser(), [text], finish)
        wanted = [f"{each.name}:{each.arguments}" for each in whole.tool_calls]
        for size in (1, 5, 1000):
            for api in APIS:
                *_, calls = api(pieces(text, size), parser(), finish)
                assert calls == wanted, (seed, size, api)
