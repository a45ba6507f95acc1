"""Bodies of the API with one value replaced by a wrong one, in every field that the models know."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2
from pydantic import BaseModel

from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.serving.server.routes.tokenize import DetokenizeRequest, TokenizeRequest
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest

_SCHEMA: Final = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
_FUNCTION: Final = {"name": "f", "description": "d", "parameters": _SCHEMA}
_CALL: Final = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_SHORT: Final = {"logit_bias": {"5": 1.5}, "stop": ["zzz"], "stop_token_ids": [7], "seed": 1}
_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
Routes = Mapping[str, tuple[type[BaseModel], dict[str, Any]]]  # by path: a schema, and a valid body
_ROUTES: Final[Routes] = {
    "/v1/completions": (CompletionRequest, {"prompt": ["a", "b"], "max_tokens": 1, **_SHORT}),
    "/v1/chat/completions": (
        ChatRequest,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "content": "x", "tool_call_id": "c"},
            ],
            "max_completion_tokens": 1,
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "chat_template_kwargs": {"enable_thinking": False},
            "response_format": _FORMAT,
            **_SHORT,
        },
    ),
    "/v1/responses": (
        ResponsesRequest,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "max_output_tokens": 1,
            "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", **_FUNCTION}]}],
            "tool_choice": "auto",
            "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}},
            "metadata": {"a": "b"},
            **_SHORT,
        },
    ),
    "/tokenize": (TokenizeRequest, {"prompt": "a"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5, 6]}),
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


_WRONG: Final[tuple[Any, ...]] = (
    None, True, -1, 10**400, -(10**400), 2**63, -(2**63) - 1, 2**64, 1e308, float("inf"), float("nan"), 1.5,
    "", "x", "<|im_end|>", "\ud800", "\0", "9" * 5000, [], [None], [[]], [-1], [float("nan")], [10**400], {},
    {"a": float("nan")}, {"type": 1}, {"1": 1e308}, {"$ref": "#"}, _nested(100),
)  # fmt: skip


def wrong_bodies(
    wrong: tuple[Any, ...] = _WRONG, routes: Routes = _ROUTES
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(path, body, place) for every field, and every place within the valid body, with every wrong value."""
    for path, (model, valid) in routes.items():
        places = [*_places(valid), *((name,) for name in model.model_fields if name not in valid)]
        for place in places:
            for value in wrong:
                yield path, _replaced(valid, place, value), ".".join(map(str, place))


def _places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _places(part, (*at, key))


def _replaced(body: dict[str, Any], place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    changed: Any = json.loads(json.dumps(body))  # a schema that is in two places becomes two
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def is_well_formed(answer: httpx2.Response) -> bool:
    """Whether it is an event stream, or strict JSON; as an error in OpenAI's format, below 500.

    An error that begins with a place in the body has that place as its param.
    """
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.status_code == 200
    try:
        content = json.loads(answer.content, parse_constant=_refuse)
    except ValueError:
        return False
    error = content.get("error") or {}
    is_error = set(error) == {"message", "type", "param", "code"}
    if is_error and error["param"]:
        place = error["message"].split()[0].rstrip(":")
        is_error = place == error["param"] or not place.startswith(error["param"])
    return answer.status_code == 200 or (400 <= answer.status_code < 500 and is_error)


def statuses_of(client: httpx2.Client, routes: Routes) -> set[int]:
    """The statuses of all wrong bodies of some routes; each answer is well formed."""
    statuses, headers = set(), {"Content-Type": "application/json"}
    for path, body, place in wrong_bodies(routes=routes):
        answer = client.post(path, content=json.dumps(body), headers=headers)
        assert is_well_formed(answer), (place, answer.text[:300])
        statuses.add(answer.status_code)
    return statuses


def _refuse(name: str) -> None:
    raise ValueError(name)
