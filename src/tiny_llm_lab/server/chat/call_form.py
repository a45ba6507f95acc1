"""The JSON schema of an answer that must be a tool call."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiny_llm_lab.server.schemas.tools import Function
from tiny_llm_lab.types import StructuredOutputs


def call_form(functions: Sequence[Function]) -> StructuredOutputs:
    """One call of one of `functions`, with arguments as its parameters say."""
    if len(functions) == 1:
        return StructuredOutputs(json=_call(functions[0], "#"))
    calls = [_call(each, f"#/anyOf/{number}") for number, each in enumerate(functions)]
    return StructuredOutputs(json={"anyOf": calls})


def _call(function: Function, place: str) -> dict[str, Any]:
    no_parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters = function.parameters or no_parameters
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """`schema` with references that hold when it stands at `place` of another."""
    if isinstance(schema, Mapping):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(each, place) for each in schema] if isinstance(schema, list) else schema
