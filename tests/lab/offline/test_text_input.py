"""A batch of plain text: a prompt a line."""

from tiny_llm_lab.serving.offline.answer_file import AnswerFile, answer_record
from tiny_llm_lab.serving.offline.batch_input import BadLine, BatchRequest, index_input, read_lines
from tiny_llm_lab.serving.offline.run_batch import bad_line_record


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
