"""Which functions a model may call, and whether it must."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tiny_llm_lab.serving.server.errors import ApiError

MAX_TOOLS: Final = 512
Mode = Literal["none", "auto", "required"]


class Function(BaseModel):
    """A function that a client offers."""

    model_config = ConfigDict(strict=True)

    name: str = Field(min_length=1, max_length=256)
    namespace: str | None = None  # of a function called NAMESPACE.NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; null: there are none

    def as_tool(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


class Tool(BaseModel):
    """A tool of a request; functions are the only kind."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: Function


def chosen_functions(
    functions: Sequence[Function], choice: str | Mapping[str, Any] | None
) -> tuple[list[Function], Mode]:
    """The functions that an answer may call, and whether it must.

    `choice` is OpenAI's tool_choice; a named function is the only one left, and required. Raises ApiError
    for a choice that cannot be made.
    """
    if isinstance(choice, Mapping):
        named = choice.get("function", choice)
        name = named.get("name") if isinstance(named, Mapping) else None
        chosen = [each for each in functions if each.name == name]
        if choice.get("type") != "function" or not chosen:
            raise _wrong(
                f"tool_choice names {name or choice.get('type')!r}, which is no function of the tools"
            )
        return chosen, "required"
    if choice not in (None, "none", "auto", "required"):
        raise _wrong(f"tool_choice must be none, auto, required or a function of the tools, not {choice!r}")
    if choice == "required" and not functions:
        raise _wrong("tool_choice is required, but there are no tools: send some")
    if choice == "none" or not functions:
        return [], "none"
    return list(functions), "required" if choice == "required" else "auto"


def _wrong(message: str) -> ApiError:
    return ApiError(400, message, param="tool_choice")
