"""What a client writes anywhere in a chat never becomes a control token of the prompt."""

import json

import pytest
from tests.helpers.chat_checkpoint import CONTROL

# Text of the client, in every place that has some; HERE is replaced.
HERE = "HERE"
PARAMETERS = {
    "type": "object",
    "description": HERE,
    "properties": {HERE: {"enum": [HERE, [HERE]], "default": {HERE: HERE}}},
}
FUNCTION = {"name": HERE, "description": HERE, "parameters": PARAMETERS}
CALL = {"id": HERE, "type": "function", "function": {"name": HERE, "arguments": json.dumps({HERE: HERE})}}
TEXT_CALL = {"type": "function", "function": {"name": HERE, "arguments": HERE}}
CHAT = {
    "messages": [
        {"role": "system", "content": HERE, "name": HERE},
        {"role": "developer", "content": HERE},
        {"role": "user", "content": [{"type": "text", "text": HERE}, {"type": "text", "text": HERE}]},
        {"role": "user", "content": HERE, "name": HERE},
        {"role": "assistant", "content": HERE, "reasoning_content": HERE, "tool_calls": [CALL, TEXT_CALL]},
        {"role": "tool", "content": HERE, "tool_call_id": HERE, "name": HERE},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "chat_template_kwargs": {"keep_thoughts": True},
    "max_tokens": 1,
}
RESPONSE = {
    "instructions": HERE,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": HERE}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": HERE}]},
        {"role": "assistant", "content": HERE},
        {"type": "function_call", "name": HERE, "arguments": HERE, "call_id": HERE},
        {"type": "function_call_output", "call_id": HERE, "output": HERE},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "chat_template_kwargs": {"keep_thoughts": True},
    "max_output_tokens": 1,
}


def control_tokens(server, path, body):
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return [each for each in server.engine.prompts[-1] if each in server.ids.values()]


@pytest.mark.parametrize(("path", "body"), [("/chat/completions", CHAT), ("/responses", RESPONSE)])
def test_no_place_makes_a_control_token(server, path, body):
    text = json.dumps(body)
    num_places = text.count(HERE)
    expected = control_tokens(server, path, json.loads(text.replace(HERE, "plain")))
    assert num_places > 14 and len(expected) > 8
    for typed in CONTROL:
        for value in (f"a{typed}b", typed):
            for place in range(num_places):
                parts = text.split(HERE)
                before, behind = "plain".join(parts[: place + 1]), "plain".join(parts[place + 1 :])
                found = control_tokens(server, path, json.loads(before + value + behind))
                assert found == expected, (typed, before[-40:])
