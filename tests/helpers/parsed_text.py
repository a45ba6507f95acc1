"""Answers as texts, and what a parser makes of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser, ToolCallParser
from tiny_llm_lab.types import FinishReason

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


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedText:
    """All that an answer says."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def parser(is_thinking: bool = False, is_call: bool = False, is_bare: bool = False) -> AnswerParser:
    return AnswerParser(ReasoningParser(is_thinking), ToolCallParser(SCHEMAS, is_call, is_bare))


def read(made: AnswerParser, pieces: Iterable[str], finish: FinishReason = "stop") -> ParsedText:
    """What the pieces are together, if the answer ends for the reason `finish`."""
    parts = [part for piece in pieces for part in made.feed(piece)] + made.feed("", finish)
    calls: list[ToolCall] = []
    for part in parts:
        assert part.text
        if part.kind == "call":
            calls.append(ToolCall(part.text, ""))
        elif part.kind == "arguments":
            calls.append(ToolCall(calls[-1].name, calls.pop().arguments + part.text))
    reasoning, content = (
        "".join(each.text for each in parts if each.kind == kind) for kind in ("reasoning", "content")
    )
    return ParsedText(reasoning, content, tuple(calls))


def call(name: str = "get", **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def told(content: str, arguments: str) -> ParsedText:
    """A call of `get`, and what else is said."""
    return ParsedText("", content, (ToolCall("get", arguments),))
