"""Tools for a chat template that knows none: a system message says which there are, and history is text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tiny_llm_lab.serving.server.chat.tool_calls import CLOSE, OPEN

_INTRODUCTION: Final = f"""\
You can call functions. To call one, answer in this form, with the name of the function and its arguments as
a JSON object:
{OPEN}
{{"name": "...", "arguments": {{...}}}}
{CLOSE}
These are the functions and the JSON schemas of their parameters, one a line:"""


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`messages` without anything that such a template would drop: `tools`, calls and what they returned."""
    turns = [_as_text(each) for each in messages]
    if not tools:
        return turns
    lines = [_INTRODUCTION, *(json.dumps(each["function"], ensure_ascii=False) for each in tools)]
    if turns and turns[0]["role"] == "system":
        first = turns.pop(0)
        lines.insert(0, f"{first['content']}\n")
    return [{"role": "system", "content": "\n".join(lines)}, *turns]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = dict(message)
    calls = turn.pop("tool_calls", ())
    if calls:
        written = [f"{OPEN}\n{json.dumps(each['function'], ensure_ascii=False)}\n{CLOSE}" for each in calls]
        turn["content"] = "\n".join([turn["content"], *written] if turn["content"] else written)
    if turn["role"] == "tool":
        content = f"<tool_response>\n{turn['content']}\n</tool_response>"
        turn = {"role": "user", "content": content}
    return turn
