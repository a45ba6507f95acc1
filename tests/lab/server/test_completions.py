"""`/v1/completions`: names of tokens, and what no record can say."""

import json
from unittest.mock import Mock

import pytest
from tests.helpers.fake_engine import FakeEngine, fake_server
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.server.api import ApiError, WrittenList, to_json
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.routes.completions import LegacyLogprobs
from tiny_llm_lab.types import EngineOutput, SchedulerConfig, TokenLogprobs

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
    assert json.loads(to_json(columns.taken()))["top_logprobs"] == [named]


def test_a_token_is_decoded_once_for_an_answer():
    tokenizer = Mock(wraps=ByteTokenizer())
    LegacyLogprobs(tokenizer).add([TokenLogprobs(97, -0.1, ((97, -0.1), (98, -2.0)))] * 9)
    assert tokenizer.decode.call_count == 2


def rest_of(values):
    """What is left to write once an answer has ended, besides lists of which each value is written."""
    return json.dumps(values, default=lambda each: isinstance(each, WrittenList))


@pytest.mark.parametrize("num_tokens", [1, 9])
def test_top_logprobs_are_written_as_they_come(num_tokens):
    """Those of a long answer took seconds at its end, in which no other stream went on."""
    scores = (TokenLogprobs(97, -0.1, ((97, -0.1), (98, -2.0))),) * num_tokens
    columns, chat = LegacyLogprobs(ByteTokenizer()), ChatChoice(ByteTokenizer(), Mock(), has_logprobs=True)
    columns.add(scores)
    chat.parser.feed.return_value = []
    chat.keep(EngineOutput("x", (97,) * num_tokens, "", logprobs=scores))
    assert "-2.0" not in rest_of(columns.taken()) and "-0.1" not in rest_of(chat.whole(0))
    content = json.loads(to_json(chat.whole(0)))["logprobs"]["content"]
    assert [each["top_logprobs"][1]["logprob"] for each in content] == [-2.0] * num_tokens


def test_only_json_is_written():
    with pytest.raises(TypeError, match="set has no JSON"):
        to_json({"a": set()})
    rows = WrittenList()
    with pytest.raises(ApiError, match="NaN"):
        rows.append(float("nan"))
    assert to_json([rows, {"é": rows}]) == '[[],{"é":[]}]'.encode()


def test_a_prompt_beyond_the_context_is_refused_and_each_seed_is_drawn():
    with fake_server(FakeEngine(SchedulerConfig(max_model_len=64))) as server:
        error = server.post("/v1/completions", prompt="x" * 60).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 64" in error["message"]
        for _ in range(2):
            done = server.post("/v1/completions", model="other", prompt="x" * 48).json()
            assert (done["model"], done["usage"]["total_tokens"]) == ("fake", 64), "not by its other name"
        first, second = (each.seed for each in server.engine.sampling.values())
    assert first != second
