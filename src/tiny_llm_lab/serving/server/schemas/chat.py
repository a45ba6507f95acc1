"""The body of `/v1/chat/completions`."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from tiny_llm_lab.runtime.models.text.template_facts import LEVELS
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, CompletionFields, finite
from tiny_llm_lab.serving.server.schemas.tools import MAX_TOOLS, Tool
from tiny_llm_lab.types import MAX_LOGPROBS

_Value = TypeVar("_Value")
THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}  # by thinking.type
_TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")


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

    def as_dict(self, place: str) -> dict[str, Any]:
        """The message as templates take it; raises ApiError unless it is text; `place` is its name."""
        turn: dict[str, Any] = {
            # Templates of open models don't know the role developer, the new name for system.
            "role": "system" if self.role == "developer" else self.role,
            "content": flat_text(self.content, f"{place}.content"),
        }
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                turn[name] = value
        if self.reasoning is not None:
            turn.setdefault("reasoning_content", self.reasoning)
        if self.content is None and self.role != "assistant":
            raise ApiError(400, f"{place}.content is missing: add it", param=f"{place}.content")
        if self.tool_calls:
            turn["tool_calls"] = [
                {"id": each.id, "type": each.type, "function": each.function.as_dict()}
                for each in self.tool_calls
            ]
        return turn


class ChatRequest(CompletionFields):
    """A conversation to answer."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, lt=MAX_COUNT)  # null: up to the model's limit
    max_completion_tokens: int | None = Field(None, ge=1, lt=MAX_COUNT)  # the newer name
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None  # DashScope's
    reasoning: dict[str, Any] | None = None  # OpenRouter's
    thinking: dict[str, Any] | None = None  # Anthropic's and DeepSeek's

    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer's tokens under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def effort(self) -> str | None:
        """How much the model may think. Raises ApiError for a level that nobody knows."""
        if self.reasoning_effort is None and (self.reasoning or {}).get("effort") is not None:
            return known_effort(self.reasoning["effort"], "reasoning.effort") if self.reasoning else None
        return known_effort(self.reasoning_effort, "reasoning_effort")

    def template_kwargs(self) -> dict[str, Any]:
        """What the template gets besides messages, tools and effort. Raises ApiError."""
        switches = [self.enable_thinking, (self.reasoning or {}).get("enabled")]
        if self.thinking is not None:
            switches.append(known_type(self.thinking, "thinking", THINKS))
        switch = next((each for each in switches if isinstance(each, bool)), None)
        return ({} if switch is None else {"enable_thinking": switch}) | (self.chat_template_kwargs or {})

    def require_supported(self) -> None:
        """Raise ApiError for fields that do not fit together."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")


def turns_of(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A conversation as templates take it. Raises ApiError for a message that is not text."""
    return [each.as_dict(f"messages[{number}]") for number, each in enumerate(messages)]


def known_effort(level: object, param: str) -> str | None:
    """`level` of the field `param`. Raises ApiError unless it is one of `LEVELS` or None."""
    if level is None or (isinstance(level, str) and level in LEVELS):
        return level
    raise ApiError(400, f"{param} must be one of {', '.join(LEVELS)}, not {level!r}", param=param)


def known_type(given: Mapping[str, Any], name: str, values: Mapping[str, _Value]) -> _Value:
    """What `values` has for the type of `given`. Raises ApiError for a type that is not there."""
    kind = str(given.get("type"))
    if kind not in values:
        message = f"{name}.type must be one of {', '.join(values)}, not {kind!r}"
        raise ApiError(400, message, param=f"{name}.type")
    return values[kind]


def flat_text(content: object, place: str) -> str:
    """The text of a message: its parts, a line each. Raises ApiError for a part that is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{place} must be text or a list of parts", param=place)
    return "\n".join(part_text(part, f"{place}[{number}]") for number, part in enumerate(content))


def part_text(part: object, place: str) -> str:
    """The text of one part. Raises ApiError for a part that is not text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else None
    if kind in _TEXT_PARTS and isinstance(text, str):
        return text
    raise ApiError(400, f"this model reads text only, and {place} is {kind!r}: send text", param=place)
