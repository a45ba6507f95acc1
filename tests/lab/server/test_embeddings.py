"""/v1/embeddings through the real `openai` client, against what sentence-transformers computed."""

import base64
import json
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import httpx2
import numpy as np
import openai
import pytest
from tests.golden.make_pooling_golden import CHECKPOINTS, NUM_DIMENSIONS, TEXTS
from tests.helpers.fake_engine import FakeEngine, http_server, raw_post, read_until, start_fake, wait_until
from tests.helpers.golden import golden
from tests.helpers.pooling_checkpoints import END, embedding_folder
from tests.helpers.real_server import openai_client_of
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.helpers.toy import QWEN3
from tests.helpers.wrong_bodies import statuses_of

from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.prompts.watch import PromptWatch
from tiny_llm_lab.serving.server.routes import pooling
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings
from tiny_llm_lab.types import SchedulerConfig

RECORD = "make_pooling_golden"


@pytest.fixture(scope="module", params=CHECKPOINTS)
def served(request, tmp_path_factory, kernels_on):
    folder = embedding_folder(request.param, tmp_path_factory.mktemp("made") / "checkpoint")
    engine = EngineSettings(SchedulerConfig(max_num_batched_tokens=64))
    settings = ModelSettings(str(folder), dtype="float32", engine=engine, task="auto")
    with openai_client_of(settings, ["embedder"]) as made:
        yield request.param, made


@pytest.fixture(scope="module")
def client(served):
    return served[1]


def embed(client, texts, **more):
    more = {"encoding_format": "float", **more}
    answer = client.embeddings.create(model="embedder", input=texts, **more)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def test_vectors_equal_those_of_sentence_transformers(served):
    name, client = served
    recorded = golden(name, RECORD, "pooling")
    assert_close(embed(client, TEXTS), recorded["whole"], F32_MODEL, legend="[texts, E]", what=RECORD)
    cut = embed(client, TEXTS, dimensions=NUM_DIMENSIONS)
    assert_close(cut, recorded["cut"], F32_MODEL, legend="[texts, dimensions]", what=RECORD)
    assert_close(embed(client, TEXTS[2])[0], recorded["whole"][2], F32_MODEL, what="a text alone")


def test_both_encodings_hold_the_same_numbers(client):
    numbers = embed(client, TEXTS, dimensions=7)
    asked = {"model": "embedder", "input": TEXTS, "dimensions": 7}
    raw = client.embeddings.with_raw_response.create(**asked, encoding_format="base64")
    data = json.loads(raw.content)["data"]
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data]
    assert np.array_equal(np.array(decoded), numbers.astype(np.float32))
    # The client asks for base64 by itself if no format is given, and decodes it.
    usual = client.embeddings.create(**asked)
    assert np.array_equal(np.array([each.embedding for each in usual.data], np.float32), numbers)
    assert np.allclose(np.linalg.norm(numbers, axis=1), 1, atol=1e-6), "roundings of float32"


def test_token_ids_are_taken_as_they_are(client):
    tokens = [[*text.encode(), END] for text in ("sea", "a fox")]
    from_text = embed(client, ["sea", "a fox"])
    assert_close(embed(client, tokens), from_text, F32_MODEL, what="with the end that the tokenizer adds")
    assert_close(embed(client, tokens[0])[0], from_text[0], F32_MODEL, what="one list of ids")
    bare = embed(client, "sea", extra_body={"add_special_tokens": False})
    assert_close(bare, embed(client, [tokens[0][:-1]]), F32_MODEL, what="without the end")
    assert np.abs(bare[0] - from_text[0]).max() > 0.01


def test_usage_counts_tokens_and_cached_ones(client):
    text = "something that nobody has asked before"
    for num_cached in (0, 32):
        usage = client.embeddings.create(model="embedder", input=text).usage
        assert (usage.prompt_tokens, usage.total_tokens, usage.completion_tokens) == (39, 39, 0)
        assert usage.prompt_tokens_details["cached_tokens"] == num_cached


def test_a_text_may_be_as_long_as_the_context(client):
    assert embed(client, [[5] * 512]).shape == (1, 64)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512") as caught:
        embed(client, [[5] * 513])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


WRONG = [
    ("input", {"input": []}),
    ("input", {"input": [[]]}),
    ("input", {"input": [1, 320]}),
    ("input", {"input": [[1] * 5, [2] * 5]}),
    ("dimensions", {"dimensions": 65}),
    ("dimensions", {"dimensions": 0}),
    ("encoding_format", {"encoding_format": "int8"}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 5}),
    ("normalize", {"normalize": False}),
]


@pytest.mark.parametrize(("param", "body"), WRONG)
def test_wrong_requests(client, param, body, monkeypatch):
    monkeypatch.setattr(pooling, "MAX_TOKENS", 9)
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/embeddings", body={"input": "a", **body}, cast_to=object)
    assert caught.value.param == param and param in caught.value.message


@pytest.mark.parametrize("valid", [{"input": ["a", "b"], "dimensions": 3}, {"input": [[5, 6], [7]]}])
def test_wrong_values_of_every_field(client, valid):
    routes = {"embeddings": (pooling.EmbeddingRequest, valid)}
    with httpx2.Client(base_url=str(client.base_url)) as plain:
        assert statuses_of(plain, routes) == {200, 400, 404}


def test_inputs_are_not_compared_with_earlier_prompts(client, monkeypatch):
    """Comparing a thousand of them held up the server for seconds."""
    monkeypatch.setattr(PromptWatch, "expect", expect := Mock())
    embed(client, TEXTS)
    assert not expect.called


@contextmanager
def three_inputs(engine):
    """A server that has got a request with three inputs, and takes two requests if one runs at a time."""
    limits, model = RequestLimits(max_waiting=1), replace(QWEN3, task="embed")
    app = create_app(lambda: start_fake(engine, limits, model=model), ServerSettings(drain_s=0))
    with http_server(app) as port:
        with raw_post(port, {"input": [[1], [2], [3]]}, "/v1/embeddings"):
            wait_until(lambda: len(engine.requests) == 3)
            yield port
        wait_until(lambda: not engine.requests)


def test_a_client_that_leaves_ends_its_requests():
    engine = FakeEngine(by_hand=True)
    with three_inputs(engine):
        pass
    assert len(engine.aborted) == 3 and engine.steps == 0


def test_a_request_enters_whole_if_a_place_is_free():
    """On an idle server it may have more inputs than the queue takes of requests."""
    engine = FakeEngine(SchedulerConfig(max_num_seqs=1), by_hand=True)
    with three_inputs(engine) as port, raw_post(port, {"input": [[1]]}, "/v1/embeddings") as refused:
        assert b" 429 " in read_until(refused, b"\r\n")


def test_other_routes_say_what_the_model_is_for(client):
    with pytest.raises(openai.BadRequestError, match="gives vectors: ask /v1/embeddings"):
        client.completions.create(model="embedder", prompt="a")
    with pytest.raises(openai.BadRequestError, match="gives vectors"):
        client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.BadRequestError, match="served to embed: start the server with --task score"):
        client.post("/rerank", body={"query": "a", "documents": ["b"]}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")


def test_a_model_that_generates_has_no_vectors(kernels_on):
    says = "model is served to generate: start the server"
    settings = ModelSettings("random:qwen3-shrunk", task="auto")
    with openai_client_of(settings, ["model"]) as made, pytest.raises(openai.BadRequestError, match=says):
        made.embeddings.create(model="model", input="a")
