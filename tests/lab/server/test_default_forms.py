"""The first examples of instructor and openai-agents, as they send them, to the shipped model."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from recipes.default_model.forms import make_schema
from recipes.default_model.records import make_record
from tests.helpers.fake_engine import http_server

from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.served_model import start_model
from tiny_llm_lab.serving.server.settings import ServerSettings

USER = {
    "properties": {"name": {"title": "Name", "type": "string"}, "age": {"title": "Age", "type": "integer"}},
    "required": ["age", "name"],
    "title": "User",
    "type": "object",
}
CITY = {
    "properties": {"city": {"title": "City", "type": "string"}},
    "required": ["city"],
    "title": "get_weather_args",
    "type": "object",
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "returns weather info for the city.", "parameters": CITY}
SCHEMA_AS_TEXT = f"""
            As a genius expert, your task is to understand the content and provide
            the parsed objects in json that match the following json_schema:


            {json.dumps(USER, indent=2)}

            Make sure to return an instance of the JSON, not the schema itself
"""
BLOCK = "\n\nReturn the correct JSON response within a ```json codeblock. not the JSON_SCHEMA"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    app = create_app(lambda: start_model(ModelSettings()), ServerSettings(drain_s=0))
    with (
        http_server(app) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=120) as client,
    ):
        yield client


def events(http: httpx2.Client, path: str, body: Any) -> Iterator[Any]:
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def chat(http: httpx2.Client, is_stream: bool, **body: Any) -> tuple[str, list[Any], str]:
    """The text of an answer, its calls, and why it ended."""
    body = {"model": "default", **body}
    if not is_stream:
        (choice,) = http.post("/chat/completions", json=body).json()["choices"]
        said = choice["message"]
        return said["content"] or "", said.get("tool_calls") or [], choice["finish_reason"]
    text, reason = "", ""
    calls: list[Any] = []
    for event in events(http, "/chat/completions", body):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or []
            reason = choice["finish_reason"] or reason
    return text, calls, reason


def respond(http: httpx2.Client, is_stream: bool, **body: Any) -> Any:
    """The response of the Responses API."""
    body = {"model": "default", **body}
    if not is_stream:
        return http.post("/responses", json=body).json()
    *_, last = events(http, "/responses", body)
    return last["response"]


def extraction(mode: str, text: str) -> Any:
    """What instructor sends for a User, in one of its modes."""
    user = {"role": "user", "content": text}
    system = {"role": "system", "content": SCHEMA_AS_TEXT}
    if mode == "tools":
        function = {"name": "User", "description": "Correctly extracted `User`", "parameters": USER}
        choice = {"type": "function", "function": {"name": "User"}}
        return {
            "messages": [user],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
        }
    if mode == "json":
        return {"messages": [system, user], "response_format": {"type": "json_object"}}
    if mode == "markdown":
        return {"messages": [system, {"role": "user", "content": text + BLOCK}]}
    form = {"type": "json_schema", "json_schema": {"name": "User", "schema": USER}}
    return {"messages": [user], "response_format": form}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("mode", ["tools", "json", "schema", "markdown"])
@pytest.mark.parametrize(
    ("text", "name", "age"),
    [
        ("John is 25 years old", "John", 25),
        ("Extract Jason is 25 years old.", "Jason", 25),
        ("Maria is 42 years old.", "Maria", 42),
    ],
)
def test_a_user_is_extracted(
    http: httpx2.Client, mode: str, text: str, name: str, age: int, is_stream: bool
) -> None:
    content, calls, reason = chat(http, is_stream, **extraction(mode, text))
    if mode == "tools":
        (call,) = calls
        content = call["function"]["arguments"]
    found = json.loads(content.removeprefix("```json\n").removesuffix("\n```"))
    assert found == {"name": name, "age": age}
    assert reason in ("stop", "tool_calls")


def test_most_records_of_new_words_are_extracted(http: httpx2.Client) -> None:
    """Words that training never saw take several tokens each: not all are copied well."""
    rng, right, count = random.Random(4), 0, 20
    for _ in range(count):
        record = make_record(rng, held_out=True)
        schema = make_schema(record, "Record")
        form = {"type": "json_schema", "json_schema": {"name": "Record", "schema": schema}}
        messages = [{"role": "user", "content": record.text}]
        text, _, reason = chat(http, False, messages=messages, response_format=form, max_tokens=200)
        assert reason == "stop", text
        right += json.loads(text) == json.loads(json.dumps(dict(record.fields)))
    assert right >= 12


QUESTION = "What's the weather in Tokyo?"
SUNNY = "The weather in Tokyo is sunny."


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_function_is_called_and_its_result_told_by_chats(http: httpx2.Client, is_stream: bool) -> None:
    turns: list[Any] = [
        {"role": "system", "content": "You are a helpful agent."},
        {"role": "user", "content": QUESTION},
    ]
    tools = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    text, calls, reason = chat(http, is_stream, messages=turns, tools=tools)
    assert (text, reason) == ("", "tool_calls")
    ((name, arguments),) = [(each["function"]["name"], each["function"]["arguments"]) for each in calls]
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Tokyo"})
    called = {key: value for key, value in calls[0].items() if key != "index"}
    turns += [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": SUNNY},
    ]
    assert chat(http, is_stream, messages=turns, tools=tools) == (SUNNY, [], "stop")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_function_is_called_and_its_result_told_by_responses(http: httpx2.Client, is_stream: bool) -> None:
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    given = {
        "instructions": "You are a helpful agent.",
        "tools": [{"type": "function", **WEATHER, "strict": True}],
    }
    first = respond(http, is_stream, input=turns, **given)
    (call,) = first["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call", "get_weather", {"city": "Tokyo"},
    )  # fmt: skip
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": SUNNY}
    last = respond(http, is_stream, input=[*turns, call, result], **given)
    (message,) = last["output"]
    assert (message["content"][0]["text"], last["status"]) == (SUNNY, "completed")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_haiku_has_three_lines(http: httpx2.Client, is_stream: bool) -> None:
    asked = "Write a haiku about recursion in programming."
    system = "You are a helpful assistant"
    turns = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    text, _, reason = chat(http, is_stream, messages=turns)
    assert (len(text.splitlines()), reason) == (3, "stop")
    response = respond(http, is_stream, input=[turns[1]], instructions=system, tools=[])
    assert response["output"][0]["content"][0]["text"] == text
    assert response["status"] == "completed"


def test_without_a_need_nothing_is_called(http: httpx2.Client) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    text, calls, reason = chat(http, False, messages=[{"role": "user", "content": "Hello"}], tools=tools)
    assert text and (calls, reason) == ([], "stop")
