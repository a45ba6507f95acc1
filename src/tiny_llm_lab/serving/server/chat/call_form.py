"""The JSON schema of an answer that must be a tool call."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.schemas.tools import Function
from tiny_llm_lab.types import StructuredOutputs, UserError

# What says nothing about which values there are.
_ANNOTATIONS: Final = frozenset("$comment title description default example examples deprecated".split())
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def call_form(functions: Sequence[Function]) -> StructuredOutputs:
    """One call of one of `functions`, with arguments as its parameters say.

    Raises ApiError for schemas that are too large together.
    """
    calls = [_call(each, f"#/anyOf/{number}") for number, each in enumerate(functions)]
    try:
        return StructuredOutputs(json={"anyOf": calls})
    except UserError as error:
        message = f"tools: of all schemas together, {error}: offer fewer tools, or tool_choice auto"
        raise ApiError(400, message, param="tools") from None


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


def _moved(schema: Any, place: str, is_by_name: bool = False) -> Any:
    """`schema` without annotations, with references that hold when it stands at `place` of another.

    `is_by_name`: it is a mapping of schemas, whose keys say nothing.
    """
    if isinstance(schema, Mapping):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else value
            if key in ("enum", "const") and not is_by_name
            else _moved(value, place, key in _BY_NAME and not is_by_name)
            for key, value in schema.items()
            if is_by_name or key not in _ANNOTATIONS
        }
    return [_moved(each, place) for each in schema] if isinstance(schema, list) else schema
