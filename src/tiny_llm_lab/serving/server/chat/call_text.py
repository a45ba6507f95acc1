"""One tool call as models write it: Hermes' JSON, or the tags of Qwen3-Coder."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tiny_llm_lab.serving.server.chat.parameter_text import parameter_value, properties_of
from tiny_llm_lab.serving.server.chat.parsed import ToolCall

_FUNCTION: Final = re.compile(r"<function=([^>\s]+)>(.*)", re.DOTALL)
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
# At the beginning, behind the end of another, or on a line of its own.
_PARAMETER: Final = re.compile(r"(?:(\A|(?<=</parameter>))\s*|\n[ \t]*)<parameter=([^>\s]+)>\n?")
_PARAMETER_END: Final = "</parameter>"

Schemas = Mapping[str, Mapping[str, Any]]  # a JSON schema of the arguments, by function name


class UnfinishedCallError(ValueError):
    """The text ends within a string or a parameter of the call."""


def parse_call(text: str, schemas: Schemas) -> ToolCall | None:
    """The call between <tool_call> and </tool_call>; None when it is malformed.

    Raises UnfinishedCallError for a text that could go on behind a </tool_call> inside of a string or of a
    parameter.
    """
    text = text.strip()
    return _parse_tags(text, schemas) if text.startswith(FUNCTION) else _parse_json(text)


def _parse_json(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise UnfinishedCallError(error.msg) from None
        return None
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return _call(call["name"], arguments)


def _parse_tags(text: str, schemas: Schemas) -> ToolCall | None:
    """A parameter without its end goes up to the next one, or to the end of the call."""
    if (function := _FUNCTION.fullmatch(text.removesuffix(FUNCTION_END))) is None:
        return None
    name, body = function.groups()
    root = schemas.get(name, {})
    properties = properties_of(root)
    # Without an end before it, what looks like a parameter may be text of the last one: its name tells.
    starts = [each for each in _PARAMETER.finditer(body) if each[1] is not None or each[2] in properties]
    if body[: starts[0].start() if starts else None].strip():
        return None
    arguments = {}
    ends = [*(each.start() for each in starts[1:]), len(body)]
    for start, end in zip(starts, ends, strict=False):  # without parameters there is one end more
        value, close, rest = body[start.end() : end].rpartition(_PARAMETER_END)
        if rest.strip() and close:
            return None
        if not close and end == len(body) and not text.endswith(FUNCTION_END):
            raise UnfinishedCallError("a parameter has no end")
        value = (value if close else rest).removesuffix("\n")
        arguments[start[2]] = parameter_value(value, properties.get(start[2]), root)
    return _call(name, arguments)


def _call(name: str, arguments: object) -> ToolCall | None:
    try:
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):  # a number such as 1e999
        return None
