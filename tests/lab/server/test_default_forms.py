"""The first examples of instructor and openai-agents, as they send them, to the shipped model."""

import json
import random

import pytest
from recipes.default_model.forms import make_schema
from recipes.default_model.records import make_record

AGE = {"title": "Age", "type": "integer"}
USER = {
    "properties": {"name": {"title": "Name", "type": "string"}, "age": AGE},
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
HELPFUL = "You are a helpful agent."
QUESTION = "What's the weather in Tokyo?"
SUNNY = "The weather in Tokyo is sunny."

is_stream = pytest.mark.parametrize("is_stream", [False, True])


def chat(client, is_stream, **body):
    """The choice of an answer."""
    if not is_stream:
        return client.chat.completions.create(model="default", **body).choices[0]
    with client.chat.completions.stream(model="default", **body) as stream:
        return stream.get_final_completion().choices[0]


def respond(client, is_stream, **body):
    """The response of the Responses API."""
    if not is_stream:
        return client.responses.create(model="default", **body)
    with client.responses.stream(model="default", **body) as stream:
        return stream.get_final_response()


def said(role, content):
    return {"role": role, "content": content}


def extraction(mode, text):
    """What instructor sends for a User, in one of its modes."""
    if mode == "json":
        form = {"type": "json_object"}
        return {"messages": [said("system", SCHEMA_AS_TEXT), said("user", text)], "response_format": form}
    if mode == "markdown":
        return {"messages": [said("system", SCHEMA_AS_TEXT), said("user", text + BLOCK)]}
    if mode == "schema":
        form = {"type": "json_schema", "json_schema": {"name": "User", "schema": USER}}
        return {"messages": [said("user", text)], "response_format": form}
    function = {"name": "User", "description": "Correctly extracted `User`", "parameters": USER}
    choice = {"type": "function", "function": {"name": "User"}}
    tools = [{"type": "function", "function": function}]
    return {"messages": [said("user", text)], "tools": tools, "tool_choice": choice}


USERS = [
    ("John is 25 years old", "John", 25),
    ("Extract Jason is 25 years old.", "Jason", 25),
    ("Maria is 42 years old.", "Maria", 42),
]


@is_stream
@pytest.mark.parametrize("mode", ["tools", "json", "schema", "markdown"])
@pytest.mark.parametrize(("text", "name", "age"), USERS)
def test_a_user_is_extracted(client, mode, text, name, age, is_stream):
    choice = chat(client, is_stream, **extraction(mode, text))
    content = choice.message.content
    if mode == "tools":
        content = choice.message.tool_calls[0].function.arguments
    found = json.loads(content.removeprefix("```json\n").removesuffix("\n```"))
    assert found == {"name": name, "age": age}
    assert choice.finish_reason == ("tool_calls" if mode == "tools" else "stop")


def test_most_records_of_new_words_are_extracted(client):
    """Words that training never saw take several tokens each: not all are copied well."""
    rng, right = random.Random(4), 0
    for _ in range(20):
        record = make_record(rng, held_out=True)
        form = {"name": "Record", "schema": make_schema(record, "Record")}
        form = {"type": "json_schema", "json_schema": form}
        choice = chat(client, False, messages=[said("user", record.text)], response_format=form)
        assert choice.finish_reason == "stop", choice
        right += json.loads(choice.message.content) == json.loads(json.dumps(dict(record.fields)))
    assert right >= 12


@is_stream
def test_a_function_is_called_and_its_result_told_by_chats(client, is_stream):
    turns = [said("system", HELPFUL), said("user", QUESTION)]
    tools = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    first = chat(client, is_stream, messages=turns, tools=tools)
    assert not first.message.content and first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Tokyo"})
    function = {"name": call.function.name, "arguments": call.function.arguments}
    sent = {"id": call.id, "type": "function", "function": function}
    turns += [{"role": "assistant", "content": None, "tool_calls": [sent]}]
    turns += [{"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    last = chat(client, is_stream, messages=turns, tools=tools)
    assert (last.message.content, last.finish_reason) == (SUNNY, "stop")


@is_stream
def test_a_function_is_called_and_its_result_told_by_responses(client, is_stream):
    turns = [said("user", QUESTION)]
    given = {"instructions": HELPFUL, "tools": [{"type": "function", **WEATHER, "strict": True}]}
    (call,) = respond(client, is_stream, input=turns, **given).output
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Tokyo"})
    sent = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}
    last = respond(client, is_stream, input=[*turns, sent, result], **given)
    assert (last.output_text, last.status) == (SUNNY, "completed")


@is_stream
def test_a_haiku_has_three_lines(client, is_stream):
    system = "You are a helpful assistant"
    asked = said("user", "Write a haiku about recursion in programming.")
    choice = chat(client, is_stream, messages=[said("system", system), asked])
    assert (len(choice.message.content.splitlines()), choice.finish_reason) == (3, "stop")
    response = respond(client, is_stream, input=[asked], instructions=system)
    assert (response.output_text, response.status) == (choice.message.content, "completed")


def test_without_a_need_nothing_is_called(client):
    tools = [{"type": "function", "function": WEATHER}]
    choice = chat(client, False, messages=[said("user", "Hello")], tools=tools)
    assert choice.message.content and choice.finish_reason == "stop"


ENDED = [
    {"extra_body": {"structured_outputs": {"regex": "[a-c]{3}"}}},
    {"extra_body": {"structured_outputs": {"choice": ["yes", "yes, but"]}}},
    {"extra_body": {"structured_outputs": {"grammar": 'start: "a" "b"'}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "user", "schema": USER}}},
    {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"},
]


@is_stream
@pytest.mark.parametrize("asked", ENDED)
def test_the_end_of_a_form_ends_the_answer(client, asked, is_stream):
    """Nothing can follow it, so a client that ignores the end of a sequence gets the same answer."""
    body = {"messages": [said("user", QUESTION)], "max_tokens": 60, "temperature": 0} | asked
    usual = chat(client, is_stream, **body)
    body["extra_body"] = {"ignore_eos": True} | asked.get("extra_body", {})
    choice = chat(client, is_stream, **body)
    assert choice.finish_reason == usual.finish_reason != "length"
    assert choice.message.content == usual.message.content
    calls = [[each.function for each in one.message.tool_calls or ()] for one in (choice, usual)]
    assert calls[0] == calls[1] and bool(calls[0]) == ("tools" in asked)
