"""bench-serve as a command, against a server that answers at once."""

import asyncio
import json

import httpx2
import pytest
from tests.helpers.fake_openai import FakeOpenAI, steady, text_chunk

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.measure.load import client


class Served:
    """The fake server that the command's clients reach."""

    server: httpx2.AsyncBaseTransport | None = None


@pytest.fixture
def served(monkeypatch):
    holder, real = Served(), httpx2.AsyncClient

    def make(**options):
        return real(**{**options, "transport": holder.server})

    monkeypatch.setattr(client.httpx2, "AsyncClient", make)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return holder


def bench(*arguments):
    return main(["bench-serve", "--tokenizer", "none", "--random-input-len", "5", *arguments])


def test_a_run_prints_the_table_and_writes_the_json(served, tmp_path, capsys):
    server = served.server = FakeOpenAI(lambda _: steady(3, 0.0, 0.0))
    code = bench(
        *"--num-prompts 4 --num-warmups 2 --random-output-len 3 --save-detailed --ignore-eos".split(),
        *f"--result-dir {tmp_path} --result-filename r.json --metadata tp=1 --temperature 0.5".split(),
    )
    assert code == 0
    out, err = capsys.readouterr()
    assert out.startswith("============ Serving Benchmark Result") and "Successful requests:" in out
    assert "tokens counted by: the server's usage (4 requests)" in err
    result = json.loads((tmp_path / "r.json").read_text())
    told = ("model_id", "tokenizer_id", "num_prompts", "tp", "request_rate", "burstiness")
    assert [result[key] for key in told] == ["fake", "none", 4, "1", "inf", 1.0]
    assert {result[key] for key in ("endpoint_type", "backend", "label")} == {"openai"}
    assert result["output_lens"] == [3] * 4 and len(result["date"]) == 15
    assert len(server.bodies) == 6 and len({body["prompt"] for body in server.bodies}) == 6
    assert json.loads((tmp_path / "r.json").read_text())["sampling"] == {"temperature": 0.5}
    assert all(body["temperature"] == 0.5 and body["ignore_eos"] for body in server.bodies)


def test_without_save_detailed_the_file_is_small(served, tmp_path):
    served.server = FakeOpenAI(lambda _: steady(1, 0.0, 0.0))
    assert bench("--num-prompts", "1", "--save-result", "--result-dir", str(tmp_path)) == 0
    [file] = tmp_path.glob("openai-infqps-fake-*.json")
    assert "ttfts" not in json.loads(file.read_text())


def test_an_open_loop_tells_latencies_from_the_arrivals(served, tmp_path):
    served.server = FakeOpenAI(lambda _: steady(1, 0.0, 0.0))
    ramp = "--ramp-up-strategy linear --ramp-up-start-rps 1e3 --ramp-up-end-rps 1e4 --save-result"
    assert (
        bench(*ramp.split(), "--num-prompts=3", f"--result-dir={tmp_path}", "--result-filename=r.json") == 0
    )
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["ramp_up_strategy"], result["ramp_up_end_rps"]) == ("linear", 1e4)
    assert result["request_rate"] == "inf" and result["from_arrival"]["mean_ttft_ms"] is not None


def test_a_chat_goes_to_its_own_endpoint(served):
    server = served.server = FakeOpenAI(lambda _: [text_chunk("a", "stop")])
    assert bench("--num-prompts", "1", "--backend", "openai-chat", "--model", "m") == 0
    assert server.paths[-1] == "/v1/chat/completions" and server.bodies[0]["model"] == "m"


def test_when_all_requests_fail_the_code_is_1(served, capsys):
    served.server = FakeOpenAI(lambda _: [b'{"error": {"message": "out of blocks"}}'], status=503)
    assert bench("--num-prompts", "2") == 1
    assert "first error of 2: HTTP 503: out of blocks" in capsys.readouterr().err


def test_ctrl_c_shows_what_was_measured(served, monkeypatch, capsys):
    served.server = FakeOpenAI(lambda number: steady(1, 99.0 if number else 0.0, 0.0))
    real = client.run_load

    async def interrupted(*given, on_record=None, **options):
        if not given[2]:  # the warm-ups
            return await real(*given, **options)
        seen = asyncio.Event()

        def note(record):
            on_record(record)
            seen.set()

        running = asyncio.ensure_future(real(*given, on_record=note, **options))
        await seen.wait()
        running.cancel()
        await asyncio.wait([running])
        raise KeyboardInterrupt

    monkeypatch.setattr("tiny_llm_lab.measure.load.command.run_load", interrupted)
    assert bench("--num-prompts", "3") == 130
    out, err = capsys.readouterr()
    assert "Successful requests:                     1\nFailed requests:                         2\n" in out
    assert "first error of 2: interrupted" in err


class Refusing(httpx2.AsyncBaseTransport):
    """A server that is not there, or tells `response`."""

    def __init__(self, response=None):
        self._response = response

    async def handle_async_request(self, request):
        if self._response is None:
            raise httpx2.ConnectError("connection refused")
        return self._response


def test_a_folder_that_is_not_there_is_told_before_anything_is_sent(served, capsys):
    server = served.server = FakeOpenAI(lambda _: steady(1, 0.0, 0.0))
    assert bench("--save-result", "--result-dir", "/nowhere") == 2
    assert "is not a folder" in capsys.readouterr().err and not server.bodies


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Refusing(), "cannot reach a server at http://127.0.0.1:8000 (connection refused): start one with"),
        (Refusing(httpx2.Response(401, json={"error": {"message": "no key"}})), "no key): set its key in"),
        (Refusing(httpx2.Response(404, text="what?")), "name one with --model"),
        (Refusing(httpx2.Response(200, json={"data": []})), "does not list a model: name one with --model"),
        (Refusing(httpx2.Response(200, text="<html>")), "does not list a model: name one with --model"),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line(served, server, message, capsys):
    served.server = server
    assert bench() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
