"""What coding agents send besides OpenAI's first examples, through a model that says what it is told."""

import re

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.fake_engine import FakeEngine, http_server, raw_post, read_until, start_fake
from tests.helpers.scripted_client import HI, TOOL

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings


def test_a_conversation_is_tokenized_as_it_is_answered(server):
    root, begun = server.root, [*HI, {"role": "assistant", "content": "So"}]
    goes_on, prompts = {"continue_final_message": True, "add_generation_prompt": False}, set()
    fields = (
        *({}, {"tools": [TOOL]}, {"add_generation_prompt": False}, {"enable_thinking": False}, goes_on),
        *({"tools": [TOOL], "tool_choice": "required"}, {"response_format": {"type": "json_object"}}),
    )
    for given in (*fields, {"tools": [TOOL], "tool_choice": "none"}):
        body = {"messages": begun if given is goes_on else HI, **given}
        found = root("/tokenize", **body).json()
        assert server.refused("/chat/completions", **body).status_code == 200
        assert found["tokens"] == server.engine.prompts[-1] and found["count"] == len(found["tokens"])
        prompts.add(tuple(found["tokens"]))
    assert len(prompts) == len(fields), "each has an effect"
    for wrong in ({}, {"messages": HI, "prompt": "x"}, {"messages": []}):
        assert root("/tokenize", **wrong).status_code == 400


def test_every_answer_has_an_id(server):
    answers = [server.refused("/chat/completions", messages=HI) for _ in range(2)]
    first, second = (each.headers["x-request-id"] for each in answers)
    assert first != second and first.startswith("req_")
    assert server.refused("/nothing").headers["x-request-id"], "errors too"
    for given, kept in (("mine", True), ("x" * 1000, False)):
        answer = server.post("/chat/completions", json={"messages": HI}, headers={"X-Request-Id": given})
        assert (answer.headers["x-request-id"] == given) == kept


ENDS = {
    **{"/v1/messages": b"event: message_stop", "/v1/responses": b"incomplete\ndata"},
    "/v1/chat/completions": b"[DONE]",
}


SIGNS = [
    ("/v1/messages", {"messages": HI, "max_tokens": 2}, b'event: ping\ndata: {"type":"ping"}\n\n'),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}, b"event: response.in_progress\n"),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 2}, b'"delta":{},"finish_reason":null'),
]


@pytest.mark.parametrize(("path", "body", "sign"), SIGNS)
def test_a_prompt_that_takes_long_is_events_and_not_only_comments(tmp_path, path, body, sign):
    """Coding tools leave a stream without an event, whatever its comments say."""
    qwen_like_folder(tmp_path / "model")
    checkpoint = load_checkpoint(tmp_path / "model")
    given = {"tokenizer": checkpoint.tokenizer, "model": checkpoint.config}
    engine, limits = FakeEngine(by_hand=True), RequestLimits(keep_alive_s=0.02)
    app = create_app(lambda: start_fake(engine, limits, **given), ServerSettings(drain_s=0))
    with http_server(app) as port, raw_post(port, {**body, "stream": True}, path) as stream:
        seen = b""
        while seen.count(sign) < 4:  # the first of a response is its beginning
            seen += stream.recv(65536)
            assert seen.count(b": prompt: ") < 30, seen
        assert engine.steps == 0 and b": prompt: 0 of " in seen, "people read those"
        engine.permit(2)
        seen += read_until(stream, ENDS[path])
    numbers = [int(each) for each in re.findall(rb'"sequence_number": ?(\d+)', seen)]
    assert numbers == [*range(len(numbers))] and (numbers or "responses" not in path)
