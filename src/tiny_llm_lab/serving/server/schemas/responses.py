"""The body of `/v1/responses`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field, ValidationError, field_validator

from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.api import refused
from tiny_llm_lab.serving.server.schemas.chat import CalledFunction
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, Form, ThinkingFields, finite, format_forms
from tiny_llm_lab.serving.server.schemas.tools import MAX_TOOLS, Function
from tiny_llm_lab.types import MAX_LOGPROBS

_ROLES: Final = ("system", "developer", "user", "assistant")
# Kinds of tools that need OpenAI's servers or are not functions; some names end in a date.
_HOSTED: Final = tuple(
    "web_search file_search computer code_interpreter image_generation local_shell shell mcp custom "
    "apply_patch tool_search".split()
)
_LOGPROBS: Final = "message.output_text.logprobs"


class ResponsesRequest(ThinkingFields):
    """A text or a list of items to answer."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=MAX_COUNT)  # null: up to the model's limit
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @field_validator("text", "tools", "tool_choice", "metadata")
    @classmethod
    def _require_json(cls, value: object) -> object:
        """The answer repeats it."""
        return finite(value)

    @property
    def is_continued(self) -> bool:
        """Whether the input ends with a part of the answer: a message that was cut."""
        last = self.input[-1] if self.input and isinstance(self.input, list) else {}
        is_cut = last.get("status") in ("incomplete", "in_progress")
        return is_cut and last.get("role") == "assistant" and last.get("type", "message") == "message"

    @property
    def most_logprobs(self) -> int | None:
        """How many tokens are scored besides each token of a message; None if none is."""
        return self.top_logprobs if self.top_logprobs or _LOGPROBS not in (self.include or ()) else 0

    def forms(self) -> Iterator[Form]:
        """See `SamplingFields.forms`."""
        given = (self.text or {}).get("format")
        if isinstance(given, Mapping) and given.get("type") == "json_schema":
            given = {"type": "json_schema", "json_schema": given}
        elif given is not None and not isinstance(given, Mapping):
            raise refused("text.format", "must be an object")
        yield from format_forms(given, "text.format")
        yield from super().forms()

    def functions(self) -> list[Function]:
        """The functions among the tools, including those in a namespace.

        Tools that OpenAI runs itself are left out. Raises ApiError for anything else.
        """
        return _functions(self.tools or (), "tools")

    def messages(self, contents: Contents) -> list[dict[str, Any]]:
        """The conversation as templates take it. Raises ApiError, and what `contents` raises."""
        if not self.input:
            raise refused("input", "is empty: send a text, or a list of items")
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        turns = _turns(items, contents)
        if self.instructions:
            first = turns.pop(0)["content"] if turns[0]["role"] == "system" else ""
            content = "\n\n".join(filter(None, (self.instructions, first)))
            turns.insert(0, {"role": "system", "content": content})
        return turns


def _turns(items: Sequence[Mapping[str, Any]], contents: Contents) -> list[dict[str, Any]]:
    """Items are smaller than messages: reasoning, text and calls of one answer follow each other."""
    turns: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place = f"input[{number}]"
        match item.get("type", "message"):
            case "message":
                turn = _message(item, place, contents)
                if turn["role"] == "assistant" and (begun := _begun(turns)) is not None:
                    turn["content"] = begun["content"] + turn["content"]
                    begun |= turn
                else:
                    turns.append(turn)
            case "reasoning":
                text, turn = contents.text(_reasoning(item), f"{place}.content"), _answer(turns)
                turn["reasoning_content"] = "\n".join(filter(None, (turn.get("reasoning_content"), text)))
            case "function_call":
                name, arguments = _text(item, "name", place), _text(item, "arguments", place)
                if item.get("namespace"):
                    name = f"{item['namespace']}.{name}"
                function = CalledFunction(name=name, arguments=arguments).as_dict()
                call = {"id": _text(item, "call_id", place), "type": "function", "function": function}
                _answer(turns).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = contents.text(item.get("output"), f"{place}.output")
                call_id = _text(item, "call_id", place)
                turns.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case other:
                raise refused(place, f"is of type {other!r}, which this server cannot read: send text")
    return turns


def _begun(turns: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The last answer, if it has only reasoning so far."""
    is_begun = turns and turns[-1]["role"] == "assistant"
    return turns[-1] if is_begun and not turns[-1]["content"] and "tool_calls" not in turns[-1] else None


def _answer(turns: list[dict[str, Any]]) -> dict[str, Any]:
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    return turns[-1]


def _message(item: Mapping[str, Any], place: str, contents: Contents) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise refused(f"{place}.role", f"must be one of {', '.join(_ROLES)}, not {role!r}")
    role = "system" if role == "developer" else role
    return {"role": role, "content": contents.text(content, f"{place}.content")}


def _reasoning(item: Mapping[str, Any]) -> Any:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        return parts
    return [{**part, "type": "text"} if isinstance(part, Mapping) else part for part in parts]


def _functions(tools: Sequence[Any], place: str, namespace: str | None = None) -> list[Function]:
    result = (_unfolded(tool, f"{place}[{number}]", namespace) for number, tool in enumerate(tools))
    return [function for each in result for function in each]


def _unfolded(tool: Any, place: str, namespace: str | None) -> list[Function]:
    tool = tool if isinstance(tool, Mapping) else {}
    kind, name, inner = tool.get("type"), tool.get("name"), tool.get("tools")
    if isinstance(kind, str) and kind.startswith(_HOSTED):
        return []
    if kind == "namespace" and namespace is None and isinstance(name, str) and isinstance(inner, list):
        return _functions(inner, f"{place}.tools", name)
    try:
        if kind == "function":
            whole = name if namespace is None else f"{namespace}.{name}"
            function = Function.model_validate({**tool, "name": whole, "namespace": namespace})
            return [function.written_as({key: value for key, value in tool.items() if key != "type"})]
    except ValidationError:
        pass
    raise refused(place, 'must be {"type": "function", "name": ..., "parameters": {...}}')


def _text(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise refused(f"{place}.{name}", "must be text")
    return value
