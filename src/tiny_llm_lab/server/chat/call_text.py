"""One tool call as models write it: Hermes' JSON, or the tags of Qwen3-Coder."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .parsed import ToolCall

_FUNCTION: Final = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>)?", re.DOTALL)
_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

Schemas = Mapping[str, Mapping[str, Any]]  # a JSON schema of the arguments, by function name


class UnfinishedCallError(ValueError):
    """The text ends within a string of the call."""


def parse_call(text: str, schemas: Schemas) -> ToolCall | None:
    """The call between <tool_call> and </tool_call>; None when it is malformed.

    Raises UnfinishedCallError for a text that could go on behind a </tool_call> inside of a string.
    """
    text = text.strip()
    return _parse_tags(text, schemas) if text.startswith("<function=") else _parse_json(text)


def _parse_json(text: str) -> ToolCall | None:
    try:
        call = json.loads(text, parse_constant=_refuse)
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
    return ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False))


def _parse_tags(text: str, schemas: Schemas) -> ToolCall | None:
    if (function := _FUNCTION.fullmatch(text)) is None or _PARAMETER.sub("", function[2]).strip():
        return None
    properties = schemas.get(function[1], {}).get("properties", {})
    arguments = {
        each[1]: _value(each[2], properties.get(each[1])) for each in _PARAMETER.finditer(function[2])
    }
    return ToolCall(function[1], json.dumps(arguments, ensure_ascii=False))


def _value(text: str, schema: object) -> object:
    """Tags do not say what a value is: the schema does, and without one whatever it reads as."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
