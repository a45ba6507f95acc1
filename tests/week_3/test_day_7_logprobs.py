"""Day 3.7: how likely each token was."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.phases import arrival_of
from tests.helpers.serving import logprobs_of, make_engine, mixed_prompts
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import VOCAB, ByteTokenizer, random_array, random_tokens

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig

pytestmark = pytest.mark.task("3.7.1")

FOREVER = SamplingParams(max_tokens=3, ignore_eos=True)


def scores_in_float64(model, tokens):
    logits = as_float64(model(mx.array([tokens]))[0])
    return (
        logits
        - np.log(np.sum(np.exp(logits - logits.max(-1, keepdims=True)), -1, keepdims=True))
        - (logits.max(-1, keepdims=True))
    )


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


def test_large_logits_and_more_than_there_are(llm):
    [read] = llm.read_logprobs([1], llm.score_tokens(mx.array([[1e4, 1e4, -1e4]]), mx.array([1]), 20))
    assert_close(read.logprob, np.log(0.5))
    assert [token for token, _ in read.top] == [0, 1, 2], "of two equally likely ones the lower number first"
    assert_close(read.top[2][1], -20000 + np.log(0.5))


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


def test_only_what_was_asked_for_and_only_what_is_shown(llm, model):
    engine = make_engine(llm, model)
    engine.add("plain", [97], FOREVER)
    assert engine.step()[0].logprobs == ()
    engine.abort("plain")
    logits, drawn = random_array(1, 2, VOCAB), mx.array([98, 99])
    sampling = replace(FOREVER, max_tokens=1, logprobs=0)
    answer = llm.Answer(ByteTokenizer(), arrival_of([97], sampling), [97], 64)
    request = llm.RequestState(llm.TokenSequence("r", [97]), answer)
    request.accept([98, 99], llm.score_tokens(logits, drawn, 3))
    found = request.output().logprobs
    assert [(each.token_id, each.top) for each in found] == [(98, ())], "the second was cut off"


def test_requests_of_one_step_get_what_each_asked_for(llm, model):
    engine, found = make_engine(llm, model), [[], [], [], []]
    prompts = [random_tokens(20 + i, 30 + i).tolist() for i in range(4)]
    for i, (prompt, asked) in enumerate(zip(prompts, (1, None, 4, 0), strict=True)):
        sampling = replace(FOREVER, max_tokens=6, logprobs=asked, temperature=0.9, seed=i)
        engine.add(str(i), prompt, sampling)
    while engine.has_requests:
        for output in engine.step():
            found[int(output.request_id)] += output.logprobs
    assert [[len(each.top) for each in got] for got in found] == [[1] * 6, [], [4] * 6, [0] * 6]
    for prompt, got in zip(prompts, found, strict=True):
        answer = [each.token_id for each in got]
        want = scores_in_float64(model, [*prompt, *answer])[len(prompt) - 1 :]
        assert_close([each.logprob for each in got], want[range(len(answer)), answer], F32_MODEL)


def prompt_logprobs_of(engine, prompt, neighbours=()):
    """What the engine says of each token of `prompt`, and when."""
    for i, each in enumerate(neighbours):
        engine.add(f"n{i}", each.content, each.sampling)
    engine.add("asks", prompt.content, prompt.sampling)
    outputs = []
    while engine.has_requests:
        outputs += [each for each in engine.step() if each.request_id == "asks"]
    assert all(not each.prompt_logprobs for each in outputs[1:]), "once, with the first token"
    return outputs[0].prompt_logprobs


@pytest.mark.parametrize(
    "config", [SchedulerConfig(), SchedulerConfig(max_num_batched_tokens=7, max_num_seqs=4)]
)
def test_every_token_of_a_prompt_but_the_first(llm, model, config):
    prompt = Prompt(random_tokens(3, 300).tolist(), replace(FOREVER, prompt_logprobs=2, logprobs=0))
    first, *found = prompt_logprobs_of(make_engine(llm, model, config), prompt, mixed_prompts()[1:4])
    assert first is None
    assert [each.token_id for each in found] == prompt.content[1:]
    want = scores_in_float64(model, prompt.content)[:-1]
    assert_close([each.logprob for each in found], want[range(299), prompt.content[1:]], F32_MODEL)
    for row, each in zip(want, found, strict=True):
        assert_close([logprob for _, logprob in each.top], np.sort(row)[::-1][:2], F32_MODEL)


def test_a_chunk_has_few_logits_at_a_time(llm, model, monkeypatch):
    """As the plan of memory says: those of a whole chunk would take 600 MB with 2,000 tokens of Qwen3."""
    rows, logits = [], model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or logits(hidden))
    prompt = Prompt(random_tokens(3, 300).tolist(), replace(FOREVER, prompt_logprobs=0, max_tokens=1))
    prompt_logprobs_of(make_engine(llm, model), prompt)
    assert max(rows) <= 16 and sum(rows) == 300, "each row once, that of the first token among them"


def test_a_prompt_of_one_token_has_nothing_to_be_likely_after(llm, model):
    prompt = Prompt([5], replace(FOREVER, prompt_logprobs=0))
    assert prompt_logprobs_of(make_engine(llm, model), prompt) == (None,)
    assert prompt_logprobs_of(make_engine(llm, model), replace(prompt, sampling=FOREVER)) == ()


def test_a_cached_prompt_and_a_preempted_one_are_scored_once(llm, model):
    prompt = Prompt(random_tokens(3, 100).tolist(), replace(FOREVER, max_tokens=30, prompt_logprobs=0))
    want = prompt_logprobs_of(make_engine(llm, model), prompt)
    engine = make_engine(llm, model)
    engine.generate([replace(prompt, sampling=FOREVER)])
    assert prompt_logprobs_of(engine, prompt) == want, "what others have computed says nothing of its tokens"
    # Half of the prompt is scored when an urgent request takes its blocks.
    config = SchedulerConfig(max_num_batched_tokens=40, max_num_seqs=4)
    engine = make_engine(llm, model, config, num_blocks=8)
    engine.add("asks", prompt.content, prompt.sampling, priority_class="batch")
    engine.step()
    engine.step()
    engine.add("urgent", random_tokens(4, 110).tolist(), FOREVER)
    found = []
    while engine.has_requests:
        found += [each for each in engine.step() if each.request_id == "asks"]
    assert engine.core.scheduler.pool.num_free == 8
    assert_close(
        [each.logprob for each in found[0].prompt_logprobs[1:]],
        [each.logprob for each in want[1:]],
        F32_MODEL,
    )
    assert len(found[0].prompt_logprobs) == 100
