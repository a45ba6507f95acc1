"""`/v1/completions` with OpenAI's own client, on an engine that spells the alphabet."""

import openai
import pytest
from tests.helpers.fake_engine import FakeEngine, fake_server
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.server.routes.completions import LegacyLogprobs
from tiny_llm_lab.types import SchedulerConfig, TokenLogprobs


@pytest.fixture(scope="module")
def server():
    with fake_server(FakeEngine(SchedulerConfig(max_model_len=64))) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def last_sampling(server):
    return list(server.engine.sampling.values())[-1]


def test_an_answer_in_one_piece(client, server):
    done = client.completions.create(model="fake", prompt="four", max_tokens=5)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("abcde", "length", 0)
    assert done.model == "fake" and done.object == "text_completion"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (4, 5, 9)
    assert done.usage.prompt_tokens_details.cached_tokens == 0
    assert client.completions.create(model="other", prompt="x").model == "fake", "the first name is told"


TOPS = [  # the token, the likeliest ones, and their names
    (0xE9, {0xE9: -0.1, 97: -3.0}, {"\ufffd": -0.1, "a": -3.0}),
    (
        0xE9,
        {0xE4: -0.1, 0xC3: -0.2, 97: -3.0},
        {"bytes:\\xe4": -0.1, "bytes:\\xc3": -0.2, "a": -3.0, "\ufffd": -9.0},
    ),
    (97, {0xE4: -0.1, 0xE9: -0.2}, {"bytes:\\xe4": -0.1, "bytes:\\xe9": -0.2, "a": -9.0}),
    (97, {97: -0.1, 98: -0.2}, {"a": -0.1, "b": -0.2}),
]


@pytest.mark.parametrize(("token", "top", "named"), TOPS)
def test_each_of_the_likeliest_tokens_has_a_name_of_its_own(token, top, named):
    """Also parts of characters, whose text is the same."""
    columns = LegacyLogprobs(ByteTokenizer())
    columns.add([TokenLogprobs(token, top.get(token, -9.0), tuple(top.items()))])
    assert columns.taken()["top_logprobs"] == [named]


def test_max_tokens_is_16_by_default(client):
    assert client.completions.create(model="fake", prompt="x").usage.completion_tokens == 16


def test_a_stream_has_the_same_text_then_the_usage(client):
    asked = {"model": "fake", "prompt": "four", "max_tokens": 5}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(**asked, **options))
    *texts, usage = chunks
    assert "".join(each.choices[0].text for each in texts) == "abcde"
    assert [each.choices[0].finish_reason for each in texts] == [*[None] * (len(texts) - 1), "length"]
    assert {each.id for each in chunks} == {chunks[0].id}
    assert usage.choices == [] and usage.usage.total_tokens == 9
    assert all(each.to_dict()["usage"] is None for each in texts)


def test_several_prompts_with_several_choices(client, server):
    several = {"prompt": ["one", "three"], "n": 2}
    done = client.completions.create(model="fake", **several, max_tokens=2, seed=7, temperature=1)
    assert [each.index for each in done.choices] == [0, 1, 2, 3]
    assert done.usage.prompt_tokens == 8, "each prompt counts once"
    assert done.usage.completion_tokens == 8
    assert [each.seed for each in list(server.engine.sampling.values())[-4:]] == [7, 8, 7, 8]


def test_seeds_of_choices_wrap_around(client, server):
    client.completions.create(model="fake", prompt="x", n=2, max_tokens=1, seed=2**64 - 1)
    assert [each.seed for each in list(server.engine.sampling.values())[-2:]] == [2**64 - 1, 0]


def test_prompts_of_token_ids(client):
    assert client.completions.create(model="fake", prompt=[5, 6, 7]).usage.prompt_tokens == 3
    done = client.completions.create(model="fake", prompt=[[5], [6, 7]])
    assert (len(done.choices), done.usage.prompt_tokens) == (2, 3)


@pytest.mark.parametrize("prompt", ["hé", list("hé".encode())])
def test_echo(client, prompt):
    done = client.completions.create(model="fake", prompt=prompt, echo=True, max_tokens=2)
    assert done.choices[0].text == "héab"


def test_echo_alone_generates_nothing(client):
    done = client.completions.create(model="fake", prompt="say", echo=True, max_tokens=0)
    assert (done.choices[0].text, done.choices[0].finish_reason) == ("say", "length")
    assert done.usage.completion_tokens == 0


def test_what_is_asked_reaches_the_engine(client, server):
    client.completions.create(
        model="fake",
        prompt="x",
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop=["stop", "end"],
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"5": 2},
        max_tokens=3,
        extra_body={
            **{"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2},
            **{"ignore_eos": True, "stop_token_ids": [9], "guided_regex": None, "no_such_field": 1},
        },
    )
    got = last_sampling(server)
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == (0.5, 0.9, 0, 0.1)
    assert (got.seed, got.stop, got.max_tokens) == (2**64 - 1, ("stop", "end"), 3)
    assert (got.presence_penalty, got.frequency_penalty, got.repetition_penalty) == (1, -1, 1.1)
    assert (got.ignore_eos, got.min_tokens, got.stop_token_ids) == (True, 2, (9,))
    assert dict(got.logit_bias) == {5: 2}


def test_the_defaults_are_openais_and_seeds_differ(client, server):
    client.completions.create(model="fake", prompt="x")
    first = last_sampling(server)
    client.completions.create(model="fake", prompt="x")
    assert (first.temperature, first.top_p) == (1.0, 1.0)
    assert first.seed != last_sampling(server).seed


def test_a_prompt_beyond_the_context(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 64") as caught:
        client.completions.create(model="fake", prompt="x" * 60)
    assert caught.value.code == "context_length_exceeded"
    assert client.completions.create(model="fake", prompt="x" * 48).usage.total_tokens == 64


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt", prompt="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


STREAM = {"prompt": "x", "stream": True}


BAD_VALUES = [
    ("prompt", {}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [[1], "x"]}),
    ("n", {"prompt": "x", "n": 10**6}),
    ("temperature", {"prompt": "x", "temperature": "1"}),
    ("logit_bias", {"prompt": "x", "logit_bias": {"x": 1}}),
    ("best_of", {"prompt": "x", "best_of": 3}),
    ("suffix", {"prompt": "x", "suffix": "y"}),
    ("stream_options.include_usage", {**STREAM, "stream_options": {"include_usage": 3}}),
    ("response_format.type", {"prompt": "x", "response_format": {"type": "xml"}}),
    ("structured_outputs", {"prompt": "x", "structured_outputs": {}}),
]


@pytest.mark.parametrize(("param", "body"), BAD_VALUES)
def test_bad_values_are_named(server, param, body):
    answer = server.post("/v1/completions", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"] and not server.engine.has_requests
