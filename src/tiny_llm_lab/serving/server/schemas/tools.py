"""Which functions a model may call, whether it must call one, and the schema of that call."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tiny_llm_lab.runtime.structured.json_schema.schema_pass import plain_schema
from tiny_llm_lab.serving.server.api import ApiError, refused
from tiny_llm_lab.serving.server.schemas.sampling import finite
from tiny_llm_lab.types import StructuredOutputs, UserError

MAX_TOOLS: Final = 512
Mode = Literal["none", "auto", "required"]


class Function(BaseModel, strict=True):
    """A function that a client offers."""

    name: str = Field(min_length=1, max_length=256)
    namespace: str | None = None  # the namespace of a function called NAMESPACE.NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; null: no parameters
    _written: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _require_json(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """The prompt repeats it."""
        return finite(value)

    def written_as(self, given: Mapping[str, Any]) -> Self:
        """This function, for chat templates written with all fields of `given` and in their order."""
        self._written = {**given, "name": self.name}
        return self

    def as_tool(self) -> dict[str, Any]:
        """In the form of chat templates."""
        names = self._written or ("name", "description", "parameters")
        function = {name: self._written.get(name, getattr(self, name, None)) for name in names}
        if self.parameters is None:  # many templates read them
            function["parameters"] = {"type": "object", "properties": {}}
        return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


class Tool(BaseModel, strict=True):
    """A tool in a request; functions are the only kind."""

    type: str
    function: Function

    @field_validator("type")
    @classmethod
    def _require_function(cls, kind: str) -> str:
        if kind != "function":
            cure = "give this tool as a function, with a parameter of type string for its text"
            raise PydanticCustomError("tool", f"this server calls functions, not {kind!r}: {cure}")
        return kind

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, given: object, made: ModelWrapValidatorHandler[Self]) -> Self:
        tool = made(given)
        if isinstance(given, Mapping):
            tool.function.written_as(given["function"])
        return tool


def chosen_functions(
    functions: Sequence[Function], choice: str | Mapping[str, Any] | None
) -> tuple[list[Function], Mode]:
    """The functions that an answer may call, and whether it must.

    `choice` is OpenAI's tool_choice; a named function is the only one left, and required. Of allowed tools
    the others are left out. Raises ApiError for a choice that is not possible.
    """
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
        if not isinstance(tools, list) or allowed.get("mode") not in ("auto", "required"):
            raise refused("tool_choice", 'allowed_tools needs "mode": auto or required, and "tools": [...]')
        named = [_named(functions, each) for each in tools]
        return chosen_functions([each for each in functions if each in named], allowed["mode"])
    if isinstance(choice, Mapping):
        return [_named(functions, choice)], "required"
    if choice not in (None, "none", "auto", "required"):
        raise refused(
            "tool_choice", f"must be none, auto, required or a function of the tools, not {choice!r}"
        )
    if choice == "required" and not functions:
        raise refused("tool_choice", "is required but tools is empty: send a tool")
    if choice == "none" or not functions:
        return [], "none"
    return list(functions), "required" if choice == "required" else "auto"


def _named(functions: Sequence[Function], choice: object) -> Function:
    named = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = named.get("name") if isinstance(named, Mapping) else None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    for each in functions:
        if kind == "function" and each.name == name:
            return each
    complaint = f"names {name or kind!r}, which is not one of the tools' functions: name one"
    raise refused("tool_choice", complaint)


def call_form(functions: Sequence[Function], arguments: str = "arguments") -> StructuredOutputs:
    """One call of one of `functions`, with `arguments`, a key by that name, as its parameters say.

    Raises ApiError for a schema that no form can keep, and for schemas that are too large together.
    """
    calls = [_call(each, f"tool-{number}", arguments) for number, each in enumerate(functions)]
    try:
        return StructuredOutputs(json={"anyOf": calls})
    except UserError as error:
        message = f"tools: all schemas together: {error}: send fewer tools, or set tool_choice auto"
        raise ApiError(400, message, param="tools") from None


def _call(function: Function, name: str, arguments: str) -> dict[str, Any]:
    no_parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    try:
        parameters = plain_schema(function.parameters or no_parameters).schema
    except UserError as error:
        message = f"tools: the parameters of {function.name!r}: {error}"
        raise ApiError(400, message, param="tools") from None
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            arguments: {"$id": name, **parameters},  # a resource of its own, in which its references hold
        },
        "required": ["name", arguments],
        "additionalProperties": False,
    }
