"""What the server says, whole: every route, streamed or not, and about ninety refusals."""

import json

from tests.helpers.scripted_client import HI, scripted_client
from tests.helpers.whole_answers import GOLDEN, REQUESTS, answers


def test_answers_are_those_on_record(tmp_path):
    """`python -m tests.helpers.whole_answers` writes the record: read its diff before you commit it."""
    expected = [json.loads(line) for line in (GOLDEN / "answers.jsonl").read_text("utf-8").splitlines()]
    with scripted_client(tmp_path / "qwen") as client:
        for asked, found, wanted in zip(REQUESTS, answers(client), expected, strict=True):
            assert found == wanted, asked


ASKED = {
    "completions": {"prompt": "a"},
    "chat/completions": {"messages": HI},
    "responses": {"input": "a"},
    "messages": {"messages": HI, "max_tokens": 9},
}


def test_the_priority_of_a_request_reaches_the_engine(server):
    for priority in (7, -3, None):
        for path, body in ASKED.items():
            assert server.post(path, json=body | {"priority": priority}).status_code == 200
    assert server.engine.priorities == [7] * 4 + [-3] * 4 + [0] * 4
