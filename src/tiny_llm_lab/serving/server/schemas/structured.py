"""The form of an answer, in the several ways in which clients ask for one."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.types import StructuredOutputs

_FORMS: Final = {each.name for each in fields(StructuredOutputs)}
_TYPES: Final = "text, json_object or json_schema"


def structured_outputs(
    structured: Mapping[str, Any] | None, response_format: Mapping[str, Any] | None, guided: Mapping[str, Any]
) -> StructuredOutputs | None:
    """What vLLM's `structured_outputs`, OpenAI's `response_format` and the older guided_* ask for together.

    `guided` has json, regex, choice or grammar, or None. Raises UserError, or ApiError, for a form that
    cannot be used, and for more than one.
    """
    asked = {name: value for name, value in guided.items() if value is not None}
    if structured is not None:
        asked |= {name: value for name, value in structured.items() if value is not None and name in _FORMS}
        if not asked:
            message = f"structured_outputs needs one of {', '.join(sorted(_FORMS))}"
            raise ApiError(400, message, param="structured_outputs")
    if response_format is not None:
        asked |= _of_response_format(response_format)
    return StructuredOutputs(**asked) if asked else None


def _of_response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise ApiError(
            400, f"response_format.type must be {_TYPES}, not {kind!r}", param="response_format.type"
        )
    named = given.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        message = 'response_format needs "json_schema": {"name": ..., "schema": {...}}'
        raise ApiError(400, message, param="response_format.json_schema")
    return {"json": schema}
