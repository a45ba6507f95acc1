"""Datasets: exact token counts, and files that users bring."""

import asyncio
import json
import random
from collections import Counter
from itertools import islice
from statistics import fmean

import httpx2
import pytest
from tests.helpers.fake_openai import FakeOpenAI, steady, text_chunk

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.measure.load import client
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.prompts import Texts, tokenizer_for
from tiny_llm_lab.measure.traffic.request import LIKE_SHAREGPT, draw_lengths
from tiny_llm_lab.types import UserError


@pytest.fixture(scope="module")
def tokenizer():
    found = tokenizer_for(None, "default")
    assert found is not None
    return found


def made(tokenizer, seed=0, **settings):
    requests = make_requests(DatasetSettings(**settings), Texts(tokenizer, seed))
    for request in requests if tokenizer else []:
        assert len(tokenizer.encode(str(request.prompt))) == request.num_prompt_tokens
    return requests


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 50, 3000])
def test_a_text_has_exactly_as_many_tokens(tokenizer, num_tokens):
    texts = Texts(tokenizer, 1)
    drawn = [texts.exact(num_tokens) for _ in range(5)]
    assert [len(tokenizer.encode(text)) for text in drawn] == [num_tokens] * 5
    assert len(set(drawn)) == 5 or num_tokens < 3


def test_a_vocabulary_of_bytes_works_too():
    class Bytes:
        def encode(self, text):
            return list(text.encode())

        def decode(self, token_ids):
            return "".join(chr(each) for each in token_ids if each < 128)

    texts = Texts(Bytes(), 0)
    assert [len(texts.exact(count)) for count in (1, 2, 7, 100)] == [1, 2, 7, 100]


def test_random_lengths_stay_in_their_range(tokenizer):
    settings = {"num_prompts": 60, "random_input_len": 40, "random_output_len": 20}
    assert {(r.num_prompt_tokens, r.max_tokens) for r in made(tokenizer, **settings)} == {(40, 20)}
    varied = made(tokenizer, **settings, random_range_ratio=0.5, random_prefix_len=8)
    assert all(28 <= r.num_prompt_tokens <= 68 and 10 <= r.max_tokens <= 30 for r in varied)
    assert len({r.num_prompt_tokens for r in varied}) > 10
    prefix = tokenizer.encode(str(varied[0].prompt))[:8]
    assert all(tokenizer.encode(str(r.prompt))[:8] == prefix for r in varied)


def test_prefixes_repeat(tokenizer):
    requests = made(
        tokenizer,
        dataset_name="prefix_repetition",
        num_prompts=12,
        prefix_repetition_prefix_len=30,
        prefix_repetition_suffix_len=10,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=5,
    )
    prefixes = [tuple(tokenizer.encode(str(r.prompt))[:30]) for r in requests]
    assert sorted(Counter(prefixes).values()) == [4, 4, 4] and len({r.prompt for r in requests}) == 12
    assert {(r.num_prompt_tokens, r.max_tokens) for r in requests} == {(40, 5)}
    assert prefixes != sorted(prefixes)  # shuffled


def test_mixed_has_20_long_and_80_short_prompts_shuffled(tokenizer):
    requests = made(tokenizer, dataset_name="mixed")
    kinds = Counter((r.kind, r.num_prompt_tokens, r.max_tokens) for r in requests)
    assert kinds == {("long", 3000, 64): 20, ("short", 50, 128): 80}
    order = [r.kind for r in requests]
    assert order not in (sorted(order), sorted(order, reverse=True))
    assert order == [r.kind for r in made(tokenizer, dataset_name="mixed")]
    assert order != [r.kind for r in made(tokenizer, seed=1, dataset_name="mixed")]


def test_a_custom_file_is_repeated(tokenizer, tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = '{"prompt": "once upon a time", "max_tokens": 7}\n', '{"prompt": "the end", "arrival_s": 0}\n'
    file.write_text("".join(rows))
    requests = made(
        tokenizer, dataset_name="custom", dataset_path=str(file), num_prompts=3, custom_output_len=9
    )
    assert [(r.prompt, r.max_tokens, r.arrival_s) for r in requests] == [
        ("once upon a time", 7, 0.0),
        ("the end", 9, 0.0),
        ("once upon a time", 7, 0.0),
    ]


@pytest.mark.parametrize("arrivals", [[0.0, 2.5], [1.0], [3.0, 0.0, 0.0], [0.5] * 6])
@pytest.mark.parametrize("asked", [1, 4, 1000])
def test_a_trace_is_sent_once(arrivals, asked, tmp_path, capsys):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps([{"prompt": "the end", "arrival_s": each} for each in arrivals]))
    requests = made(None, dataset_name="custom", dataset_path=str(file), num_prompts=asked)
    assert [each.arrival_s for each in requests] == arrivals[:asked]
    told = f"{len(arrivals)} requests, not {asked}: a trace is sent once" in capsys.readouterr().err
    assert told == (len(arrivals) < asked)


@pytest.mark.parametrize(
    "field", [{"temperature": 0}, {"top_p": 1.0}, {"stop": ["x"]}, {"seed": 3}, {"priority": 1}]
)
def test_a_field_that_is_not_sent_is_refused(field, tmp_path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(["one", {"prompt": "the end", **field}]))
    message = f"entry 1: unknown field '{next(iter(field))}': known are prompt, max_tokens, arrival_s"
    with pytest.raises(UserError, match=message):
        made(None, dataset_name="custom", dataset_path=str(file))


def test_sharegpt_takes_the_first_two_turns_that_fit(tmp_path):
    def talk(*turns):
        return {"conversations": [{"from": "x", "value": turn} for turn in turns]}

    long, short = "word " * 1025, "one two three four"
    talks = [talk(short, "a b c d e", "more"), talk(long, short), talk("too short", short), talk(short, "no")]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([*talks, talk("only one turn"), talk()]))
    settings = {"dataset_name": "sharegpt", "dataset_path": str(file), "num_prompts": 2}
    assert [(r.prompt, r.max_tokens) for r in made(None, **settings)] == [(short, 5)] * 2
    fixed = made(None, **settings, sharegpt_output_len=3)
    assert [(r.prompt, r.max_tokens) for r in fixed] == [(short, 3)] * 2


def test_sharegpt_without_a_file_has_its_lengths(tokenizer):
    lengths = list(islice(draw_lengths(random.Random(0), LIKE_SHAREGPT, 1024, 2048), 20_000))
    assert all(4 <= prompt <= 1024 and output >= 4 and prompt + output <= 2048 for prompt, output in lengths)
    means = [fmean(each) for each in zip(*lengths, strict=True)]
    # The spread of a mean of 20,000 is below 1.5 tokens.
    assert means == pytest.approx([230, 203], abs=6)
    requests = made(tokenizer, dataset_name="sharegpt", num_prompts=30)
    assert len({request.num_prompt_tokens for request in requests}) > 20
    fixed = made(tokenizer, dataset_name="sharegpt", num_prompts=3, sharegpt_output_len=7)
    assert [request.max_tokens for request in fixed] == [7] * 3


BAD_FILES = [
    ("[]", "has no usable conversation"),
    ("{broken", "not a ShareGPT file"),
    ("[1]", "has no usable conversation"),
    ("{}", "not a ShareGPT file"),
    ("[" * 100_000, "not a ShareGPT file"),
    (None, "cannot read"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_a_bad_sharegpt_file_is_named(content, message, tmp_path):
    file = tmp_path / "sharegpt.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        made(None, dataset_name="sharegpt", dataset_path=str(file))


BAD_ENTRIES = [
    *(1, None, [], {}, {"id": "x"}),
    *({"conversations": each} for each in (None, 5, {}, ["a", "b"], "ab", [{"value": "a"}])),
    {"conversations": [{"value": 1}, {"value": "b"}]},
    {"conversations": [{"text": "a"}, {"value": "b"}]},
]


@pytest.mark.parametrize("bad", BAD_ENTRIES)
def test_one_bad_entry_of_sharegpt_is_left_out_and_counted(bad, tmp_path, capsys):
    file = tmp_path / "sharegpt.json"
    good = {"conversations": [{"value": "one two three four"}, {"value": "a b c d e"}]}
    file.write_text(json.dumps([good, bad, good]))
    found = made(None, dataset_name="sharegpt", dataset_path=str(file), num_prompts=2)
    assert [each.prompt for each in found] == ["one two three four"] * 2
    assert "1 of 3 entries have no two turns: left out, first entry 1" in capsys.readouterr().err


def test_a_file_that_never_ends_is_refused():
    for name in ("sharegpt", "custom"):
        with pytest.raises(UserError, match="/dev/zero has more than 64 MiB"):
            made(None, dataset_name=name, dataset_path="/dev/zero")


def test_no_tokenizer_is_downloaded_unasked():
    assert tokenizer_for(None, "Qwen/Qwen3-0.6B") is None and tokenizer_for("none", "default") is None
    assert tokenizer_for(None, "\0" * 9) is None


# Bench-serve as a command, against a server that answers at once


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


NO_SERVERS = [
    (Refusing(), "cannot reach a server at http://127.0.0.1:8000 (connection refused): start one with"),
    (Refusing(httpx2.Response(401, json={"error": {"message": "no key"}})), "no key): set its key in"),
    (Refusing(httpx2.Response(404, text="what?")), "name one with --model"),
    (Refusing(httpx2.Response(200, json={"data": []})), "does not list a model: name one with --model"),
    (Refusing(httpx2.Response(200, text="<html>")), "does not list a model: name one with --model"),
]


@pytest.mark.parametrize(("server", "message"), NO_SERVERS)
def test_a_server_that_cannot_be_asked_is_one_line(served, server, message, capsys):
    served.server = server
    assert bench() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
