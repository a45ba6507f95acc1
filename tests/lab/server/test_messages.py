"""Anthropic's /v1/messages through a model that says what it is told."""

import json

import pytest
from tests.helpers.scripted_client import CALL

TOOL = {"name": "get", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
HI = {"model": "scripted", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = f"<think>Hm.</think>One moment.{CALL}"


def ask(server, script="ok", **changes):
    server.engine.script = script
    return server.refused("/messages?beta=true", **{**HI, **changes})


def events_of(text):
    """The events of a stream, each named by its type; a stream has no [DONE]."""
    blocks = [block.split("\n") for block in text.strip().split("\n\n") if not block.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {each['type']}" for each in events]
    return events


@pytest.mark.parametrize("stride", [1, 4, 1000])
def test_a_stream_builds_the_same_blocks(server, stride):
    whole = ask(server, ANSWER, tools=[TOOL]).json()
    server.engine.stride = stride
    events = events_of(ask(server, ANSWER, tools=[TOOL], stream=True).text)
    kinds = [each["type"] for each in (events[0], *events[-2:])]
    assert kinds == ["message_start", "message_delta", "message_stop"]
    blocks = []
    for each in events[1:-2]:
        kind = each["type"]
        assert each["index"] == len(blocks) - (kind != "content_block_start")
        if kind == "content_block_start":
            blocks.append(dict(each["content_block"], is_open=True))
        elif kind == "content_block_stop":
            assert blocks[-1].pop("is_open")
        else:
            delta = dict(each["delta"])
            [(name, text)] = [(key, value) for key, value in delta.items() if key != "type"]
            assert delta["type"] == {"partial_json": "input_json_delta"}.get(name, f"{name}_delta")
            blocks[-1][name] = blocks[-1].get(name, "") + text
    for block in blocks:
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json"))
    plain = [{k: v for k, v in block.items() if k != "id"} for block in whole["content"]]
    assert [{k: v for k, v in block.items() if k != "id"} for block in blocks] == plain
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    for usage in (events[-2]["usage"], whole["usage"]):
        usage.pop("prefix_cache", None)  # the second prompt is not as new as the first
    assert events[-2]["usage"] == whole["usage"]
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def test_tokens_are_counted_as_they_are_used(server):
    body = {key: value for key, value in HI.items() if key != "max_tokens"} | {"tools": [TOOL]}
    counted = server.refused("/messages/count_tokens", **body).json()
    usage = ask(server, tools=[TOOL]).json()["usage"]
    kinds = [usage[f"{kind}input_tokens"] for kind in ("", "cache_read_", "cache_creation_")]
    assert counted == {"input_tokens": sum(kinds)} and sum(kinds[1:]) == sum(kinds) // 16 * 16


def test_a_prompt_beyond_the_window_is_counted_and_refused_with_both_numbers(server):
    bare = server.refused("/messages/count_tokens", **HI).json()["input_tokens"] - 2
    for num_more in (-1, 0, 1, 10**5):
        asked = {"messages": [{"role": "user", "content": "x" * (server.window - bare + num_more)}]}
        count = server.refused("/messages/count_tokens", model="scripted", **asked).json()["input_tokens"]
        assert count == server.window + num_more
        refused = ask(server, **asked)
        says = f"prompt is too long: {count} tokens > {server.window - (num_more == 0)} maximum"
        error = {"type": "invalid_request_error", "message": says}
        assert refused.status_code == (200 if num_more < 0 else 400)
        assert num_more < 0 or (refused.json()["type"], refused.json()["error"]) == ("error", error)
        assert server.root("/tokenize", **asked).status_code == 200
