"""The bodies of Anthropic's `/v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from pydantic import Field, ValidationError

from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.api import refused
from tiny_llm_lab.serving.server.schemas import sampling
from tiny_llm_lab.serving.server.schemas.tools import MAX_TOOLS, Function

_Value = TypeVar("_Value")
_CLEARS: Final = "clear_thinking_20251015"
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


class CountRequest(sampling.ThinkingFields):
    """A conversation; what Anthropic's servers do besides, such as caching by request, is ignored."""

    others = ("max_tokens", "stop_sequences")

    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None

    @property
    def is_one_call(self) -> bool:
        """Whether calls after the first are dropped."""
        return bool((self.tool_choice or {}).get("disable_parallel_tool_use"))

    def turns(self, contents: Contents) -> list[dict[str, Any]]:
        """The conversation as templates take it; an answer at its end goes on, unless it is empty.

        What the system says before the first answer is one turn at the beginning: after a question a model
        would answer it instead. Raises ApiError, and what `contents` raises.
        """
        system = [contents.text(self.system, "system")] if self.system else []
        turns: list[dict[str, Any]] = []
        has_answer = False
        for number, message in enumerate(self.messages):
            new = [*_turns(message, f"messages[{number}]", contents)]
            has_answer = has_answer or message["role"] == "assistant"
            if message["role"] == "system" and not has_answer:
                system += [each["content"] for each in new]
            else:
                turns += new
        if system:
            turns.insert(0, {"role": "system", "content": "\n".join(system)})
        is_empty = is_begun(turns) and turns[-1].keys() == {"role", "content"} and not turns[-1]["content"]
        return turns[:-1] if is_empty else turns

    def functions(self) -> list[Function]:
        """The functions among the tools. Raises ApiError for a tool that is none."""
        return _functions(self.tools or ())

    def choice(self) -> str | dict[str, Any] | None:
        """`tool_choice` as OpenAI has it. Raises ApiError."""
        given = self.tool_choice or {"type": "auto"}
        if given.get("type") == "tool":
            return {"type": "function", "name": given.get("name")}
        return sampling.known_type(given, "tool_choice", _CHOICES)

    def asked_thinking(self) -> sampling.Thinking:
        """See `ThinkingFields`. The model thinks only if the request says so.

        An edit of `context_management` says whether thoughts of earlier answers are kept.
        """
        edits, variables = (self.context_management or {}).get("edits"), {"enable_thinking": False}
        for edit in edits if isinstance(edits, list) else ():
            if isinstance(edit, Mapping) and edit.get("type") == _CLEARS:
                variables["preserve_thinking"] = edit.get("keep") == "all"
        said = super().asked_thinking()
        return replace(said, variables={**variables, **said.variables})

    def efforts(self) -> dict[str, Any]:
        """See `ThinkingFields.efforts`."""
        return {"output_config.effort": (self.output_config or {}).get("effort"), **super().efforts()}


class MessagesRequest(CountRequest):
    """A conversation to answer."""

    max_tokens: int = Field(ge=1, lt=sampling.MAX_COUNT)  # more than fit are as many as fit
    stop_sequences: list[str] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends the answer, under either name."""
        others = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return (*(self.stop_sequences or ()), *others)

    def turns(self, contents: Contents) -> list[dict[str, Any]]:
        """See `CountRequest.turns`. Also raises ApiError for an end that no answer can follow."""
        turns = super().turns(contents)
        if turns and turns[-1]["role"] == "assistant":
            _require_end(turns[-1], f"messages[{len(self.messages) - 1}]")
        return turns

    def forms(self) -> Iterator[sampling.Form]:
        """See `SamplingFields.forms`; `output_format` is the name from before `output_config`."""
        newer = (self.output_config or {}).get("format")
        for place, given in (("output_config.format", newer), ("output_format", self.output_format)):
            schema = given.get("schema") if isinstance(given, Mapping) else None
            if given and (not isinstance(schema, Mapping) or given.get("type") != "json_schema"):
                raise refused(place, 'must be {"type": "json_schema", "schema": {...}}')
            yield place, "json", schema
        yield from super().forms()


def is_begun(turns: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the conversation ends with the beginning of the answer."""
    return bool(turns) and turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]


def _require_end(turn: Mapping[str, Any], place: str) -> None:
    """Raise ApiError for an answer that cannot go on; Anthropic refuses the same."""
    if "tool_calls" in turn:
        raise refused(place, "calls a tool: send its tool_result as the next message")
    if turn["content"] != turn["content"].rstrip():
        raise refused(place, "begins the answer and ends in a blank: remove the blank")


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Tools that Anthropic runs itself have a dated type and no schema, and are left out."""
    results = []
    for number, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom" and "input_schema" not in tool:
            continue
        try:
            results.append(Function.model_validate({**tool, "parameters": tool.get("input_schema")}))
        except ValidationError:
            form = '{"name": ..., "description": ..., "input_schema": {...}}'
            raise refused(f"tools[{number}]", f"must be {form}") from None
    return results


def _turns(message: Mapping[str, Any], place: str, contents: Contents) -> Iterator[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield _answer(content, f"{place}.content", contents)
    elif role in ("user", "system"):  # a template takes a system message at the beginning only
        yield from _asked(content, f"{place}.content", contents)
    else:
        raise refused(f"{place}.role", f"must be user or assistant, not {role!r}")


def _asked(content: object, place: str, contents: Contents) -> Iterator[dict[str, Any]]:
    """Results of tools are turns of their own, before and after which there may be text."""
    texts: list[str] = []
    for number, block in enumerate(_blocks(content, place)):
        at = f"{place}[{number}]"
        if block.get("type") != "tool_result":
            texts.append(contents.part(block, at))
            continue
        if texts:
            yield {"role": "user", "content": contents.joined(texts)}
            texts = []
        result = contents.text(block.get("content"), f"{at}.content")
        if block.get("is_error"):
            result = f"Error: {result}"
        yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": result}
    if texts:
        yield {"role": "user", "content": contents.joined(texts)}


def _answer(content: object, place: str, contents: Contents) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": ""}
    for number, block in enumerate(_blocks(content, place)):
        match block.get("type"):
            case "thinking":
                turn["reasoning_content"] = turn.get("reasoning_content", "") + str(block.get("thinking", ""))
            case "redacted_thinking":
                pass
            case "tool_use":
                given = _given(block.get("input") or {}, f"{place}[{number}].input")
                function = {"name": str(block.get("name")), "arguments": given}
                call = {"id": str(block.get("id")), "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
            case _:
                turn["content"] += contents.part(block, f"{place}[{number}]")
    return turn


def _given(value: _Value, place: str) -> _Value:
    try:
        return sampling.finite(value)
    except ValueError as error:
        raise refused(place, str(error)) from None


def _blocks(content: object, place: str) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and all(isinstance(block, Mapping) for block in content):
        return content
    raise refused(place, "must be text or a list of blocks")
