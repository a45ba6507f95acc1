"""`/v1/completions`: names of tokens, and what no record can say."""

import pytest
from tests.helpers.fake_engine import FakeEngine, fake_server
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.server.routes.completions import LegacyLogprobs
from tiny_llm_lab.types import SchedulerConfig, TokenLogprobs

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
