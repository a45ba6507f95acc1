"""Day 3.6: how likely each token was."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.serving import logprobs_of, make_engine, mixed_prompts
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import VOCAB, ByteTokenizer, random_array, random_tokens, toy_model

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig

FOREVER = SamplingParams(max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


def scores_in_float64(model, tokens):
    logits = as_float64(model(mx.array([tokens]))[0])
    return (
        logits
        - np.log(np.sum(np.exp(logits - logits.max(-1, keepdims=True)), -1, keepdims=True))
        - (logits.max(-1, keepdims=True))
    )


@pytest.mark.task("3.6.7")
@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_logarithms_of_the_softmax(llm, num_top, dtype):
    logits = random_array(1, 3, 100, dtype=dtype) * 8
    tokens = mx.array([5, 99, 0])
    read = llm.read_logprobs([5, 99, 0], llm.score_tokens(logits, tokens, num_top))
    x = as_float64(logits)
    want = x - np.log(np.exp(x).sum(-1, keepdims=True))
    assert_close([each.logprob for each in read], want[[0, 1, 2], [5, 99, 0]])
    for row, each in zip(want, read, strict=True):
        best = np.argsort(-row, kind="stable")[:num_top]
        assert [token for token, _ in each.top] == best.tolist(), "the likeliest, best first"
        assert_close([logprob for _, logprob in each.top], row[best])


@pytest.mark.task("3.6.7")
def test_large_logits_and_more_than_there_are(llm):
    [read] = llm.read_logprobs([1], llm.score_tokens(mx.array([[1e4, 1e4, -1e4]]), mx.array([1]), 20))
    assert_close(read.logprob, np.log(0.5))
    assert [token for token, _ in read.top] == [0, 1, 2], "of two equally likely ones the lower number first"
    assert_close(read.top[2][1], -20000 + np.log(0.5))


@pytest.mark.task("3.6.7")
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 5, "seed": 3}])
def test_an_answer_with_its_logprobs(llm, model, settings):
    prompt = Prompt(random_tokens(3, 40).tolist(), replace(FOREVER, max_tokens=8, logprobs=4, **settings))
    found = logprobs_of(make_engine(llm, model), prompt)
    answer = [each.token_id for each in found]
    want = scores_in_float64(model, [*prompt.content, *answer])[39:-1]
    assert_close([each.logprob for each in found], want[range(8), answer], F32_MODEL)
    for row, each in zip(want, found, strict=True):
        assert_close([logprob for _, logprob in each.top], np.sort(row)[::-1][:4], F32_MODEL)
        assert_close([logprob for _, logprob in each.top], row[[token for token, _ in each.top]], F32_MODEL)


@pytest.mark.task("3.6.7")
def test_neighbours_and_chunks_change_nothing(llm, model):
    prompt = Prompt(random_tokens(3, 90).tolist(), replace(FOREVER, max_tokens=8, logprobs=2))
    alone = logprobs_of(make_engine(llm, model), prompt)
    config = SchedulerConfig(max_num_batched_tokens=37, max_num_seqs=8)
    among = logprobs_of(make_engine(llm, model, config), prompt, mixed_prompts()[:4])
    assert [each.token_id for each in among] == [each.token_id for each in alone]
    assert_close([each.logprob for each in among], [each.logprob for each in alone], F32_MODEL)
    assert [[t for t, _ in each.top] for each in among] == [[t for t, _ in each.top] for each in alone]


@pytest.mark.task("3.6.7")
def test_only_what_was_asked_for_and_only_what_is_shown(llm, model):
    engine = make_engine(llm, model)
    engine.add("plain", [97], FOREVER)
    assert engine.step()[0].logprobs == ()
    engine.abort("plain")
    logits, drawn = random_array(1, 2, VOCAB), mx.array([98, 99])
    for asked, wanted in ((0, [(98, ())]), (None, [])):
        sampling = replace(FOREVER, max_tokens=1, logprobs=asked)
        answer = llm.Answer(ByteTokenizer(), [97], sampling, 64, arrival_s=0.0, clock=lambda: 0.0)
        request = llm.RequestState(llm.TokenSequence("r", [97]), answer)
        scores = request.score(logits, drawn)
        assert bool(scores) == bool(wanted), "scores are for requests that ask"
        request.accept([98, 99], scores)
        found = request.output().logprobs
        assert [(each.token_id, each.top) for each in found] == wanted, "the second was cut off"
