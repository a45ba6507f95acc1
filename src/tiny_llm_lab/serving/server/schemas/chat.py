"""The body of `/v1/chat/completions`."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.api import refused
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, CompletionFields, ThinkingFields, finite
from tiny_llm_lab.serving.server.schemas.tools import MAX_TOOLS, Tool
from tiny_llm_lab.types import MAX_LOGPROBS


class CalledFunction(BaseModel, strict=True):
    """A function call in an earlier answer."""

    name: str
    arguments: str | Annotated[dict[str, Any], AfterValidator(finite)] = ""

    def as_dict(self) -> dict[str, Any]:
        """As templates take it: arguments as an object, or as the text that was sent if that is not one."""
        arguments: Any = self.arguments
        if isinstance(arguments, str):
            try:
                arguments = finite(json.loads(arguments or "{}"))
            except (ValueError, RecursionError):
                arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


class CallInHistory(BaseModel, strict=True):
    """A tool call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel, strict=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[CallInHistory] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's name of the same

    def as_dict(self, place: str, contents: Contents) -> dict[str, Any]:
        """The message as templates take it; raises ApiError, or PartError; `place` is its name."""
        turn: dict[str, Any] = {
            # Templates of open models don't know the role developer, the new name for system.
            "role": "system" if self.role == "developer" else self.role,
            "content": contents.text(self.content, f"{place}.content"),
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                turn[name] = value
        if self.reasoning is not None:
            turn.setdefault("reasoning_content", self.reasoning)
        if self.content is None and self.role != "assistant":
            raise refused(f"{place}.content", "is missing: add it")
        if self.tool_calls:
            turn["tool_calls"] = [
                {"id": each.id, "type": each.type, "function": each.function.as_dict()}
                for each in self.tool_calls
            ]
        return turn


class ChatRequest(CompletionFields, ThinkingFields):
    """A conversation to answer."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=MAX_COUNT)  # null: up to the model's limit
    max_completion_tokens: int | None = Field(None, ge=1, lt=MAX_COUNT)  # the newer name
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    # vLLM's
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer's tokens under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def require_supported(self) -> None:
        """Raise ApiError for fields that do not fit together."""
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "needs logprobs: true")


def turns_of(messages: Sequence[ChatMessage], contents: Contents) -> list[dict[str, Any]]:
    """A conversation as templates take it, read by `contents`. Raises ApiError, or PartError."""
    return [each.as_dict(f"messages[{number}]", contents) for number, each in enumerate(messages)]
