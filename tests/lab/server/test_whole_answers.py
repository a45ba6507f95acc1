"""What the server says, whole: every route, streamed or not, and about ninety refusals."""

import json

from tests.helpers.scripted_client import scripted_client
from tests.helpers.whole_answers import GOLDEN, REQUESTS, answers


def test_answers_are_those_on_record(tmp_path):
    """`python -m tests.helpers.whole_answers` writes the record: read its diff before you commit it."""
    expected = [json.loads(line) for line in (GOLDEN / "answers.jsonl").read_text("utf-8").splitlines()]
    with scripted_client(tmp_path / "qwen") as client:
        for asked, found, wanted in zip(REQUESTS, answers(client), expected, strict=True):
            assert found == wanted, asked
