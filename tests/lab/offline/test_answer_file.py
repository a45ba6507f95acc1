"""The file of answers: what is in it is not written again."""

import json

from tests.helpers.pooling_checkpoints import embedding_folder

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.offline.answer_file import (
    AnswerFile,
    BadLine,
    BatchRequest,
    answer_record,
    error_record,
    index_input,
    read_lines,
)
from tiny_llm_lab.serving.offline.command import bad_line_record


def test_a_record_that_is_there_is_not_written_again(tmp_path):
    prompts, answers_path = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello"}}
    prompts.write_text(json.dumps(asked))
    with AnswerFile(answers_path, index_input(prompts)) as answers:
        for _ in range(2):
            answers.append(error_record(1, "a", "server_error", "lost"))
    assert len(answers_path.read_text().splitlines()) == 1


# A batch of plain text: a prompt a line


def test_each_line_is_a_prompt(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\nWho are you?\n\n  {not json} \n\xff\n")
    who, other, bad = read_lines(path)
    assert isinstance(who, BatchRequest) and isinstance(other, BatchRequest) and isinstance(bad, BadLine)
    assert (who.custom_id, who.url, other.line) == ("line-2", "/v1/chat/completions", 4)
    asked = [each.body["messages"] for each in (who, other)]
    assert asked == [[{"role": "user", "content": text}] for text in ("Who are you?", "{not json}")]
    assert "not UTF-8" in bad.reason
    path.write_text('[1]\nWho are you?\n{"custom_id": "a"}')
    assert all(isinstance(each, BadLine) for each in read_lines(path)), "what begins as JSON is JSON"


def test_the_first_failure_is_known_also_when_it_goes_on(tmp_path):
    source, target = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    source.write_bytes(b"one\ntwo\n\xff\n")
    one, two, bad = read_lines(source)
    assert isinstance(one, BatchRequest) and isinstance(two, BatchRequest) and isinstance(bad, BadLine)
    with AnswerFile(target, index_input(source)) as answers:
        answers.append(answer_record(one, 200, "x", {}))
        assert answers.first_failure == ""
        answers.append(answer_record(two, 400, "x", {"error": {"message": "too long"}}))
        answers.append(bad_line_record(bad))
        assert (answers.num_failed, answers.first_failure) == (2, "line-2: too long")
    with AnswerFile(target, index_input(source)) as answers:
        assert (answers.num_failed, answers.first_failure) == (2, "line-2: too long")


# A batch of texts for an embedding model


def test_a_batch_embeds(tmp_path):
    folder = embedding_folder("random:qwen3-shrunk", tmp_path / "embedder")
    paths = source, target = tmp_path / "texts.jsonl", tmp_path / "vectors.jsonl"
    bodies = {"a": {"input": "sea"}, "b": {"prompt": "sea"}}
    head = {"method": "POST", "url": "/v1/embeddings"}
    source.write_text("\n".join(json.dumps({**head, "custom_id": k, "body": b}) for k, b in bodies.items()))
    flags = [
        text for name, path in zip(("--input", "--output"), paths, strict=True) for text in (name, str(path))
    ]
    assert cli.main(["batch", *flags, "--model", str(folder)]) == 1, "one of them asks for text"
    lines = [json.loads(each) for each in target.read_text().splitlines()]
    found = {each["custom_id"]: each["response"] for each in lines}
    assert len(found["a"]["body"]["data"][0]["embedding"]) == 64 and found["b"]["status_code"] == 400
