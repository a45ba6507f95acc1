"""A batch answers each line once, whatever happens to its process and its disk."""

import codecs
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from tests.helpers.echo_app import EchoApp
from tests.helpers.pooling_checkpoints import embedding_folder

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.offline import command
from tiny_llm_lab.serving.offline.answer_file import (
    MAX_LINE_BYTES,
    AnswerFile,
    BadLine,
    BatchRequest,
    answer_record,
    error_record,
    index_input,
    read_lines,
)
from tiny_llm_lab.serving.offline.command import bad_line_record

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SLOW_BATCH = """
import sys
from tests.helpers.echo_app import EchoApp
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.offline import command
command.batch_app = lambda *_: EchoApp(0.05)
sys.exit(cli.main(sys.argv[1:]))
"""


def line(custom_id, prompt="hello", **changed):
    body = {"model": "default", "prompt": prompt}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body} | changed
    )


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"


@pytest.fixture
def app(monkeypatch):
    app = EchoApp()
    monkeypatch.setattr(command, "batch_app", lambda *_: app)
    return app


@pytest.fixture
def batch(paths):
    """The command on `paths`; without flags of its own, four requests run at a time."""

    def run(*flags):
        return cli.main(arguments(paths, *(flags or ("--max-concurrency", "4"))))

    return run


def arguments(paths, *flags):
    return ["batch", "--input", str(paths[0]), "--output", str(paths[1]), *flags]


def records(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


def by_id(path):
    found = records(path)
    assert len({each["id"] for each in found}) == len(found), "each line once"
    return {each["custom_id"]: each for each in found}


def test_answers_have_the_format_of_openai(paths, app, batch):
    paths[0].write_text("\n".join([line("a", "one"), "", line("b", "two")]))
    assert batch() == 0
    assert by_id(paths[1])["a"]["response"]["request_id"] == "req-1", "the header's, as in the server's log"
    answer = by_id(paths[1])["b"]
    assert answer["id"].startswith("batch_req_3_")
    assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
    assert answer["response"]["body"] == {"id": answer["response"]["request_id"], "text": "two"}
    assert app.life == ["started", "stopped"]


def test_bad_lines_get_their_reason_and_the_rest_goes_on(paths, app, batch):
    bad = [
        b"{no json",
        b"[" * 100_000,
        b'{"custom_id": "\xff"}',
        b"[1]",
        line(7).encode(),
        line("get", method="GET").encode(),
        line("url", url="/v1/images").encode(),
        line("body", body=[1]).encode(),
        line("stream", body={"prompt": "x", "stream": True}).encode(),
        b"x" * (MAX_LINE_BYTES + 3),
    ]
    paths[0].write_bytes(b"\n".join([*bad, line("last").encode()]) + b"\n")
    assert batch() == 1
    found = records(paths[1])
    assert sorted(int(each["id"].split("_")[2]) for each in found) == list(range(1, 12))
    reasons = {each["custom_id"]: each["error"]["message"] for each in found if each["error"]}
    assert reasons["get"] == 'method must be "POST"'
    assert reasons["stream"].startswith("a batch does not stream its answers")
    assert found[-1]["custom_id"] == "last" and found[-1]["response"]["status_code"] == 200
    assert app.prompts == ["hello"]
    assert batch() == 1 and len(records(paths[1])) == 11, "bad lines are answered once too"


def test_what_the_application_refuses_is_an_answer(paths, app, batch):
    paths[0].write_text("\n".join([line("a", "bad"), line("b", "busy"), line("c")]))
    assert batch() == 1
    codes = {each["custom_id"]: each["response"]["status_code"] for each in records(paths[1])}
    assert codes == {"a": 400, "b": 200, "c": 200}, "a full queue is waited for"


def test_no_more_requests_than_places(paths, app, batch):
    paths[0].write_text("\n".join(line(str(i)) for i in range(30)))
    assert batch("--max-concurrency", "3") == 0
    assert app.most_running == 3


def test_what_is_no_batch_is_refused_before_anything_is_asked(paths, app, batch, capfd):
    twice, no_request = [line("a"), line("b"), line("a")], ["", "{Who are you?", "{}"]
    for lines, said in ((twice, ":3: line 1 has the same"), (no_request, ":2: the line is not JSON")):
        paths[0].write_text("\n".join(lines))
        assert batch() == 2 and said in capfd.readouterr().err and not app.life


def test_answered_lines_are_not_asked_again(paths, app, batch):
    paths[0].write_text(line("a", "one") + "\n")
    assert batch() == 0
    with paths[0].open("a") as file:
        file.write(line("b", "two") + "\n")
    assert batch() == 0
    assert app.prompts == ["one", "two"]
    assert batch() == 0 and app.life == ["started", "stopped"] * 2, "nothing is left to start it for"


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_last_line_is_answered_again(kept, paths, app, batch):
    paths[0].write_text(line("a", "one") + "\n" + line("b", "two") + "\n")
    assert batch("--max-concurrency", "1") == 0
    first, last = paths[1].read_bytes().splitlines(keepends=True)
    paths[1].write_bytes(first + last[:kept])
    assert batch() == 0
    assert by_id(paths[1]).keys() == {"a", "b"}
    assert app.prompts == ["one", "two", "two"]


OTHER_OUTPUTS = [
    "notes of mine",
    '{"id": "batch_req_1", "custom_id": "z", "response": null, "error": {}}\n',
    '{"id": "batch_req_9", "custom_id": "a", "response": null, "error": {}}\n',
    '{"id": "batch_req_x", "custom_id": "a", "response": null, "error": {}}\n',
    '{"id": "batch_req_1", "custom_id": 1, "response": null, "error": {}}\n',
    '{"id": "batch_req_1", "custom_id": "a", "response": null, "error": {}}\n',
    '{"id": "batch_req_1", "custom_id": "a", "response": null, "error": "lost"}\n',
    "{}\n",
    "[1]\n",
]


@pytest.mark.parametrize("content", OTHER_OUTPUTS)
def test_another_output_is_refused_and_left_alone(content, paths, batch, capfd):
    paths[0].write_text(line("a"))
    paths[1].write_text(content)
    assert batch() == 2
    assert "answers.jsonl:1: this line is not an answer to the input" in capfd.readouterr().err
    assert paths[1].read_text() == content


CHANGES = [  # of the second line
    ("one\ntwo", "one\nthree"),
    ("one\ntwo", "zero\none\ntwo"),
    (line("a") + "\n" + line("b", "two"), line("a") + "\n" + line("b", "three")),
    (line("a") + "\n" + line("b", url="/v1/completion"), line("a") + "\n" + line("b")),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_an_answer_to_a_line_that_has_changed_is_not_taken_for_its_answer(
    before, after, paths, app, batch, capfd
):
    paths[0].write_text(before)
    batch()
    answers = paths[1].read_bytes()
    paths[0].write_text(f"  {before}\n\n")
    batch()
    asked = len(app.prompts)
    paths[0].write_text(after)
    assert batch() == 2
    assert "of the input, which has changed since: choose another --output" in capfd.readouterr().err
    assert (paths[1].read_bytes(), len(app.prompts)) == (answers, asked)


def test_answers_of_another_model_are_not_taken_for_its_own(paths, app, batch, capfd):
    paths[0].write_text(line("a") + "\n" + line("b"))
    assert batch() == 0
    records_, asked = records(paths[1]), len(app.prompts)
    for each, model in zip(records_, ("default", "qwen3-8b"), strict=True):
        each["response"]["body"]["model"] = model
    paths[1].write_text("".join(json.dumps(each) + "\n" for each in records_))
    assert batch() == 2
    message = "answers.jsonl:2: an answer of the model qwen3-8b, and not of default: choose another --output"
    assert message in capfd.readouterr().err and len(app.prompts) == asked
    paths[1].write_text(json.dumps(records_[1]) + "\n")
    assert batch("--served-model-name", "*", "--served-model-name", "qwen3-8b") == 0


def test_answers_of_older_versions_have_no_digest(paths, app, batch):
    paths[0].write_text(line("a") + "\n" + line("b"))
    error = '{"message": "lost"}'
    paths[1].write_text(f'{{"id": "batch_req_1", "custom_id": "a", "response": null, "error": {error}}}\n')
    assert batch() == 1 and len(app.prompts) == 1


def test_streams_and_the_input_itself_are_refused(paths, capfd):
    paths[0].write_text(line("a"))
    assert cli.main(["batch", "--input", "-", "--output", str(paths[1])]) == 2
    assert cli.main(["batch", "--input", str(paths[0]), "--output", "-"]) == 2
    assert cli.main(["batch", "--input", str(paths[0]), "--output", str(paths[0])]) == 2
    assert cli.main(["batch", "--input", str(paths[1]), "--output", str(paths[1])]) == 2
    assert cli.main(["batch", "--input", str(paths[0]), "--output", os.devnull]) == 2
    assert cli.main(arguments(paths, "--num-replicas", "2")) == 2
    assert paths[0].read_text() == line("a")
    assert len(capfd.readouterr().err.splitlines()) == 6


def test_two_processes_do_not_share_an_output(paths, batch):
    paths[0].write_text(line("a"))
    with AnswerFile(paths[1], index_input(paths[0])):
        assert batch() == 2


def test_a_full_disk_is_one_line_and_the_rest_is_answered_later(paths, app, batch, capfd):
    paths[0].write_text("\n".join(line(str(i)) for i in range(40)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        code = batch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 1
    assert "answers.jsonl: File too large: fix that and run the same command again" in capfd.readouterr().err
    assert paths[1].stat().st_size == 2000, "as much of a line as there was room for"
    assert app.life == ["started", "stopped"]
    assert batch() == 0
    assert len(by_id(paths[1])) == 40


def test_an_application_that_has_stopped_ends_the_batch(paths, app, batch, capfd):
    paths[0].write_text("\n".join([line("a"), line("b", "gone"), line("c")]))
    assert batch("--max-concurrency", "1") == 1
    assert "error: the engine has stopped" in capfd.readouterr().err
    assert by_id(paths[1]).keys() == {"a"}, "what is left can be asked again"


def test_a_killed_batch_goes_on(paths, app, batch):
    paths[0].write_text("\n".join(line(str(i), f"prompt {i}") for i in range(200)))
    command_line = [sys.executable, "-c", SLOW_BATCH, *arguments(paths, "--max-concurrency", "2")]
    with subprocess.Popen(command_line, env=ENVIRONMENT) as process:
        while not (paths[1].exists() and paths[1].read_bytes().count(b"\n") >= 3):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    before = by_id(paths[1])
    assert 3 <= len(before) < 200
    assert batch() == 0
    after = by_id(paths[1])
    assert after.keys() == {str(i) for i in range(200)}
    assert all(each["response"]["body"]["text"] == f"prompt {name}" for name, each in after.items())
    assert {name: after[name] for name in before} == before, "what was written stays"
    assert len(app.prompts) == 200 - len(before), "what was answered is not asked again"


# The file of answers


def test_a_record_that_is_there_is_not_written_again(tmp_path):
    prompts, answers_path = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello"}}
    prompts.write_text(json.dumps(asked))
    with AnswerFile(answers_path, index_input(prompts)) as answers:
        for _ in range(2):
            answers.append(error_record(BatchRequest(1, "a", "", {}), "server_error", "lost"))
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


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + line("a").encode() + b"\r\n" + line("b").encode())
    assert [each.custom_id for each in read_lines(path)] == ["a", "b"]
    path.write_bytes(codecs.BOM_UTF8 + b"Who are you?\n")
    [who] = read_lines(path)
    assert who.body["messages"][0]["content"] == "Who are you?"


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
    flags = ["--input", str(paths[0]), "--output", str(paths[1])]
    assert cli.main(["batch", *flags, "--model", str(folder)]) == 1, "one of them asks for text"
    lines = [json.loads(each) for each in target.read_text().splitlines()]
    found = {each["custom_id"]: each["response"] for each in lines}
    assert len(found["a"]["body"]["data"][0]["embedding"]) == 64 and found["b"]["status_code"] == 400
