"""The real `openai` client and the model that is served by default."""

import json

import pytest
from pydantic import BaseModel, Field
from tests.helpers.scripted_client import streamed

WHO = [{"role": "user", "content": "Who are you?"}]
ASK = {"model": "default", "messages": WHO, "temperature": 0, "max_tokens": 12}


class Mood(BaseModel):
    """A form that a model of any size can fill."""

    mood: bool
    level: int = Field(ge=0, le=9)


class Place(BaseModel):
    """Refers to a definition, as pydantic writes them."""

    mood: Mood


def tool(name, **properties):
    """A function with such parameters, each by a reference."""
    parameters = {
        "type": "object",
        "$defs": properties,
        "properties": {each: {"$ref": f"#/$defs/{each}"} for each in properties},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def test_a_stream_is_the_answer_in_pieces(client):
    whole = client.chat.completions.create(**ASK)
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.choices[0].message.content == text and text.startswith("I am")
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 12)


def test_several_answers_with_seeds(client):
    ask = {**ASK, "temperature": 4, "seed": 7, "n": 2}
    first, second = (client.chat.completions.create(**ask) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1] and [choice.index for choice in first.choices] == [0, 1]
    streamed = ["", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_stop_strings_and_limits(client):
    whole = client.chat.completions.create(**ASK).choices[0].message.content or ""
    stopped = client.chat.completions.create(**ASK, stop=[whole[5:9]]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (whole[:5], "stop")
    ask = {**ASK, "max_tokens": 12, "max_completion_tokens": 2}
    assert client.chat.completions.create(**ask).usage.completion_tokens == 2


def test_logprobs_spell_the_answer(client):
    choice = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    scores = choice.logprobs.content
    data = b"".join(bytes(each.bytes or []) for each in scores)
    assert data.decode() == choice.message.content and len(scores) == 12
    tops = [each.top_logprobs for each in scores]
    assert all(len(top) == 2 for top in tops)
    assert [top[0].logprob for top in tops] == [each.logprob for each in scores]
    chunks = client.chat.completions.create(**ASK, logprobs=True, stream=True)
    told = [each for chunk in chunks for choice in chunk.choices for each in choice.logprobs.content or []]
    assert [each.token for each in told] == [each.token for each in scores]


def test_an_answer_becomes_a_pydantic_model(client):
    for seed in range(3):
        ask = {**ASK, "max_tokens": 100, "temperature": 1, "seed": seed}
        parsed = client.chat.completions.parse(**ask, response_format=Place)
        assert isinstance(parsed.choices[0].message.parsed, Place)
    response = client.responses.parse(model="default", input="How is it?", text_format=Place)
    assert isinstance(response.output_parsed, Place)


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_required_is_valid(client, seed):
    tools = [tool("turn", left={"type": "boolean"}), tool("go", steps={"enum": [1, 2, 3]})]
    ask = {**ASK, "max_tokens": 100, "temperature": 1, "seed": seed, "tools": tools}
    choice = client.chat.completions.create(**ask, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert arguments in ([{"left": True}, {"left": False}] if call.function.name == "turn" else
                         [{"steps": count} for count in (1, 2, 3)])  # fmt: skip
    named = {"type": "function", "function": {"name": "go"}}
    [(name, written)] = streamed(client.chat.completions.create(**ask, tool_choice=named, stream=True)).calls
    assert name == "go" and json.loads(written) in [{"steps": count} for count in (1, 2, 3)]


def test_responses(client):
    ask = {"model": "default", "input": "Who are you?", "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**ask)
    assert whole.output_text == client.chat.completions.create(**ASK).choices[0].message.content
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage is not None and whole.usage.output_tokens == 12
    with client.responses.stream(**ask) as stream:
        deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    scored = {**ask, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = client.responses.create(**scored).output[0].content[0]
    assert b"".join(bytes(each.bytes) for each in part.logprobs) == part.text.encode()
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in part.logprobs)
    with client.responses.stream(**scored) as stream:
        events = [each for each in stream if each.type == "response.output_text.delta"]
    tokens = [each.token for event in events for each in event.logprobs]
    assert tokens == [each.token for each in part.logprobs]
