"""The file of answers: what is in it is not written again."""

import json

from tiny_llm_lab.serving.offline.answer_file import AnswerFile, error_record
from tiny_llm_lab.serving.offline.batch_input import index_input


def test_a_record_that_is_there_is_not_written_again(tmp_path):
    prompts, answers_path = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello"}}
    prompts.write_text(json.dumps(asked))
    with AnswerFile(answers_path, index_input(prompts)) as answers:
        for _ in range(2):
            answers.append(error_record(1, "a", "server_error", "lost"))
    assert len(answers_path.read_text().splitlines()) == 1
