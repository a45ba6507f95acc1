"""Day 3.7: what changes the logits of one request, and never those of another."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.serving import make_engine
from tests.helpers.tolerance import as_float64, assert_close
from tests.helpers.toy import EOS, SECOND_EOS, VOCAB, ByteTokenizer, random_array, random_tokens

from tiny_llm_lab.types import (
    Arrival,
    Prompt,
    SamplingParams,
    Wanted,
)

pytestmark = pytest.mark.task("3.7.3")
PROMPT = random_tokens(3, 40).tolist()
LONG = SamplingParams(max_tokens=24, ignore_eos=True)


CHANGED = {
    "repetition": {"repetition_penalty": 1.4},
    "presence and frequency": {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.7,
        "temperature": 0.8,
        "seed": 4,
    },
    "bias": {"logit_bias": {5: 60.0, 7: -100.0}, "temperature": 1.0},
    "min_tokens": {"min_tokens": 20, "ignore_eos": False, "logit_bias": {EOS: 100, SECOND_EOS: 99}},
    "all": {"repetition_penalty": 0.8, "frequency_penalty": -0.4, "logit_bias": {9: 2.0}, "min_tokens": 3},
}


class Odd:
    """Bars tokens of one parity, which the text so far decides."""

    def __call__(self, logits, prompt, answer):
        parity = (sum(answer) + len(prompt)) % 2
        return mx.where(mx.arange(len(logits)) % 2 == parity, -mx.inf, logits)


def changed_by_hand(sampling, logits, prompt, answer, ends=()):
    """The same in float64, a token at a time."""
    row = np.array(logits, np.float64)
    for token in ends if len(answer) < sampling.min_tokens else ():
        row[token] = -np.inf
    for token, bias in sampling.logit_bias_pairs:
        row[token] += bias
    for token in {*prompt, *answer}:
        row[token] *= sampling.repetition_penalty if row[token] <= 0 else 1 / sampling.repetition_penalty
    for token in set(answer):
        row[token] -= sampling.presence_penalty + sampling.frequency_penalty * answer.count(token)
    return row


# One row


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("name", CHANGED)
def test_a_row_as_by_hand(llm, name, dtype):
    sampling = SamplingParams(**CHANGED[name])
    logits = random_array(1, VOCAB, dtype=dtype) * 5
    before = as_float64(logits)
    prompt, answer = [3, 3, 9, 200], [9, 9, 9, 17, 5]
    found = llm.Penalties(sampling, prompt, {EOS, SECOND_EOS})(logits, prompt, answer)
    assert found.shape == (VOCAB,)
    want = changed_by_hand(sampling, before, prompt, answer, (EOS, SECOND_EOS))
    likely = np.isfinite(want)
    assert_close(as_float64(found)[likely], want[likely])
    assert not as_float64(mx.softmax(found))[~likely].any()
    assert np.array_equal(as_float64(logits), before), "the logits given stay as they are: others read them"


def test_the_end_is_the_last_resort(llm):
    barred = llm.Penalties(SamplingParams(min_tokens=2), [1], {EOS})(mx.zeros(VOCAB), [1], [])
    only_end = mx.where(mx.arange(VOCAB) == EOS, barred, -mx.inf)
    assert mx.argmax(only_end).item() == EOS
    assert mx.random.categorical(only_end, key=mx.random.key(1)).item() == EOS


def test_an_answer_of_exactly_the_fewest_tokens(llm, model):
    sampling = SamplingParams(min_tokens=4, max_tokens=9, logit_bias={EOS: 100})
    done = make_engine(llm, model).generate([Prompt(PROMPT, sampling), Prompt([EOS], sampling)])
    assert [(len(each.token_ids), each.finish_reason) for each in done] == [(4, "stop")] * 2


def test_ends_outside_the_logits_are_left_alone(llm):
    row = llm.Penalties(SamplingParams(min_tokens=2), [1], {EOS, 10**6})(mx.zeros(VOCAB), [1], [])
    assert mx.sum(row < 0).item() == 1


# In the engine


def alone(llm, model, prompt):
    """The answer of a loop that knows nothing of steps: one forward pass over the whole text a token."""
    sampler = llm.Sampler(prompt.sampling)
    ends = llm.Answer(ByteTokenizer(), Arrival(0, prompt, 0.0), prompt.content, 1000).end_token_ids
    own = [llm.Penalties(prompt.sampling, prompt.content, ends)] if prompt.sampling.changes_logits else []
    tokens: list[int] = []
    while len(tokens) < prompt.sampling.max_tokens:
        text = [*prompt.content, *tokens]
        row = model(mx.array([text]), wanted=Wanted(last=1))[0, -1]
        for processor in (*own, *prompt.processors):
            row = processor(row, prompt.content, tokens)
        token = sampler(row[None], len(text)).item()
        if token in ends:
            break
        tokens.append(token)
    return tuple(tokens)


def test_prompts_of_generate_bring_processors(llm, model):
    prompts = [Prompt(PROMPT, LONG, processors=(Odd(),)), Prompt(PROMPT, LONG)]
    odd, plain = make_engine(llm, model).generate(prompts)
    assert plain.token_ids == alone(llm, model, prompts[1])
    assert odd.token_ids == alone(llm, model, prompts[0]) != plain.token_ids
