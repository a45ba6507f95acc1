"""Day 3.6: the two sides of a request, and what is told of it."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.phases import arrival_of
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import ByteTokenizer, random_array

from tiny_llm_lab.types import PrefillEvent, SamplingParams, TokenEvent

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.6.1")


def state_of(llm, prompt=b"abcdef", **sampling):
    tokens, arrival = list(prompt), arrival_of(prompt, SamplingParams(**sampling))
    return llm.RequestState(llm.TokenSequence("r", tokens), llm.Answer(ByteTokenizer(), arrival, tokens, 64))


def advance(request, num_new, sampled=()):
    """What a step does with a request: its tokens first, then the commit."""
    if sampled:
        request.accept(sampled)
    request.sequence.advance(num_new, sampled)
    request.committed()
    return request.output()


@pytest.mark.parametrize("settings", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}])
def test_a_request_draws_with_its_own_settings(llm, settings):
    logits = random_array(1, 12, 258) * 2
    drawn = []
    for seed in (0, 5):
        params = {"temperature": 0.8, "seed": seed, **settings}
        request = state_of(llm, **params)
        assert request.sampling == SamplingParams(**params)
        drawn.append(request.sampler(logits, 6).tolist())
        assert drawn[-1] == llm.Sampler(SamplingParams(**params))(logits, 6).tolist()
    assert drawn[0] != drawn[1], "of two seeds"


def test_chunks_are_told_and_decodes_are_not(llm):
    request = state_of(llm, max_tokens=4)
    outputs = [
        advance(request, 2),
        advance(request, 3),
        advance(request, 1, [120]),
        advance(request, 1, [121]),
    ]
    told = [[type(event) for event in output.events] for output in outputs]
    assert told == [[PrefillEvent], [PrefillEvent], [PrefillEvent, TokenEvent], [TokenEvent]]
    ends = [output.events[0].num_computed_tokens for output in outputs[:3]]
    assert ends == [2, 5, 6]
    assert [output.token_ids for output in outputs] == [(), (), (120,), (121,)]


def test_only_what_is_new_of_a_prompt_is_told(llm):
    request = state_of(llm)
    assert advance(request, 4).events[0].num_computed_tokens == 4
    request.sequence.num_computed_tokens = 0  # preempted
    assert [advance(request, each).events for each in (1, 3)] == [(), ()]
    (event,) = advance(request, 1).events
    assert event.num_computed_tokens == 5
    assert not request.has_output, "a chunk is no news to a user who waits for text"


@pytest.mark.task("3.7.1")
def test_every_token_of_a_step_has_the_logprobs_of_its_own_row(llm):
    request = state_of(llm, max_tokens=3, logprobs=2)
    logits, drawn = random_array(3, 4, 258) * 3, mx.array([9, 200, 31, 7])
    request.accept([9, 200, 31, 7], llm.score_tokens(logits, drawn, 2))
    found = request.output().logprobs
    x = np.array(logits).astype(np.float64)
    want = x - np.log(np.exp(x).sum(-1, keepdims=True))
    assert [each.token_id for each in found] == [9, 200, 31], "as many as the answer has tokens"
    assert_close([each.logprob for each in found], [want[0, 9], want[1, 200], want[2, 31]], F32)
    assert [[token for token, _ in each.top] for each in found] == [
        np.argsort(-row)[:2].tolist() for row in want[:3]
    ]
    assert request.output().logprobs == (), "told once"
