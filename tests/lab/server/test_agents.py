"""What coding agents send besides OpenAI's first examples, through a model that says what it is told."""

import pytest
from tests.helpers.scripted_client import HI, TOOL


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HI, "max_tokens": 10**6}),
        ("/responses", {"input": "Hi", "max_output_tokens": 10**6}),
        ("/messages", {"messages": HI, "max_tokens": 10**6}),
    ],
)
def test_more_tokens_than_fit_are_as_many_as_fit(server, path, body):
    assert server.refused(path, **body).status_code == 200
    asked, prompt = server.engine.asked[-1].max_tokens, server.engine.prompts[-1]
    assert asked + len(prompt) == server.window


def test_a_conversation_is_tokenized_as_it_is_answered(server):
    root = server.root
    body = {"messages": HI, "tools": [TOOL]}
    found = root("/tokenize", **body).json()
    server.refused("/chat/completions", **body)
    assert found["tokens"] == server.engine.prompts[-1] and found["count"] == len(found["tokens"])
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
