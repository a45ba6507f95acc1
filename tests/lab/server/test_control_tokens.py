"""What a client writes anywhere in a chat never becomes a control token of the prompt."""

import json
from types import SimpleNamespace

import httpx2
import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.scripted_engine import ScriptedEngine, scripted_server

TYPED = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
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


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted") / "qwen"
    control = set(qwen_like_folder(folder).values())
    engine = ScriptedEngine()
    with scripted_server(folder, engine) as url, httpx2.Client(base_url=url, timeout=60) as client:

        def control_tokens(path, body):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return [each for each in engine.prompts[-1] if each in control]

        yield SimpleNamespace(control_tokens=control_tokens)


@pytest.mark.parametrize(("path", "body"), [("/chat/completions", CHAT), ("/responses", RESPONSE)])
def test_no_place_makes_a_control_token(server, path, body):
    text = json.dumps(body)
    num_places = text.count(HERE)
    expected = server.control_tokens(path, json.loads(text.replace(HERE, "plain")))
    assert num_places > 14 and len(expected) > 8
    for typed in TYPED:
        for value in (f"a{typed}b", typed):
            for place in range(num_places):
                parts = text.split(HERE)
                before, behind = "plain".join(parts[: place + 1]), "plain".join(parts[place + 1 :])
                found = server.control_tokens(path, json.loads(before + value + behind))
                assert found == expected, (typed, before[-40:])
