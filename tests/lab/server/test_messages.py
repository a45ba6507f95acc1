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


def test_an_answer_has_blocks_of_thinking_text_and_calls(server):
    done = ask(server, ANSWER, tools=[TOOL], system=[{"type": "text", "text": "Be kind"}]).json()
    thinking, text, call = done["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert text == {"type": "text", "text": "One moment."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get", {"city": "Köln"})
    assert call["id"].startswith("toolu_")
    assert (done["type"], done["role"], done["stop_reason"]) == ("message", "assistant", "tool_use")
    assert "Be kind" in server.prompt() and '"name": "get"' in server.prompt()


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


ENDS = [
    (None, "one two", "stop", "end_turn", None),
    (None, "one two", "length", "max_tokens", None),
    (["four", "thr"], "one two three four", "stop", "stop_sequence", "thr"),
    (["x"], "one two", "stop", "end_turn", None),
    (["one"], "one two", "stop", "end_turn", None),  # within min_tokens, where it doesn't count
    (["thr"], "one two", "length", "max_tokens", None),
]


@pytest.mark.parametrize(("stops", "written", "finished", "reason", "sequence"), ENDS)
def test_why_an_answer_ended(server, stops, written, finished, reason, sequence):
    engine = server.engine
    engine.finish_reason, engine.token_ids = finished, tuple(server.encode(written))
    try:
        done = ask(server, "one two", **({"stop_sequences": stops} if stops else {})).json()
    finally:
        engine.finish_reason, engine.token_ids = "stop", ()
    assert (done["stop_reason"], done["stop_sequence"]) == (reason, sequence)
    assert engine.asked[-1].stop == tuple(stops or ())


@pytest.mark.parametrize(("begun", "status"), [(" one", 200), ("one ", 400), ("one\n", 400), ("", 200)])
def test_an_answer_that_is_begun_may_not_end_in_a_blank(server, begun, status):
    turns = [*HI["messages"], {"role": "assistant", "content": begun}]
    assert server.refused("/messages", **(HI | {"messages": turns})).status_code == status


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
        assert refused.status_code == 200 if num_more < 0 else refused.json()["error"]["message"] == says
        assert server.root("/tokenize", **asked).status_code == 200


def test_names_of_claude_are_answered_and_others_are_not(server):
    assert ask(server, model="claude-sonnet-5").json()["model"] == "claude-sonnet-5"
    refused = ask(server, model="gpt-9")
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "not_found_error")


IMAGE = {"type": "image", "source": {"type": "base64", "data": ""}}


BILLING = "x-anthropic-billing-header: cc_version=2"
NOTHING = (
    [{"role": "user", "content": []}],
    [{"role": "assistant", "content": ""}],
    [{"role": "user", "content": []}, {"role": "assistant", "content": []}],
)
REFUSED = [
    ({"messages": []}, "messages"),
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0] is 'image'"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    *(({"messages": turns, "system": BILLING}, "messages have nothing to answer") for turns in NOTHING),
    *(({"messages": turns}, "messages have nothing to answer") for turns in NOTHING),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be text"),
    ({"tools": [{"description": "no name", "input_schema": {}}]}, "tools[0]"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice names 'other'"),
    ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"thinking": {"type": "hard"}}, "thinking.type"),
    ({"messages": [{"role": "user", "content": "x " * 10**5}]}, "prompt is too long: "),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_refusals_have_anthropics_form(server, changes, says):
    refused = ask(server, **changes)
    assert refused.status_code == 400 and refused.json()["type"] == "error", refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert says in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/messages/count_tokens", "/chat/completions", "/responses"])
def test_a_conversation_without_a_turn_is_refused_on_every_route(server, path):
    turns = NOTHING if path == "/messages/count_tokens" else ([{"role": "system", "content": BILLING}],)
    for each in turns:
        refused = server.refused(path, **{"input" if path == "/responses" else "messages": each})
        assert (refused.status_code, "nothing to answer" in refused.text) == (400, True), each


def test_a_choice_of_a_tool_is_kept_and_hosted_tools_are_left_out(server):
    tools = [TOOL, {"type": "web_search_20250305", "name": "web_search"}]
    script = CALL.split("\n")[1]
    for choice in ({"type": "any"}, {"type": "tool", "name": "get"}):
        done = ask(server, script, tools=tools, tool_choice=choice).json()
        assert [each["type"] for each in done["content"]] == ["tool_use"]
        assert "web_search" not in server.prompt()
    once = {"type": "auto", "disable_parallel_tool_use": True}
    done = ask(server, f"{CALL}\n{CALL}", tools=tools, tool_choice=once).json()
    assert [each["type"] for each in done["content"]] == ["tool_use"]
    done = ask(server, CALL, tools=tools, tool_choice={"type": "none"}).json()
    assert [each["type"] for each in done["content"]] == ["text"]
