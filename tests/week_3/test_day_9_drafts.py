"""Day 3.9: drafts at the borders: unknown tokens, an empty residual."""

import mlx.core as mx
import pytest
from tests.helpers.drafting import Scripted
from tests.helpers.fakes import FakeModel
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import DoneEvent, SamplingParams

VOCAB = FakeModel().config.vocab_size


# Acceptance


@pytest.mark.task("3.9.2")
def test_a_residual_of_nothing_is_not_drawn_from(llm):
    # When q is p up to rounding, a draft token can be rejected although max(p - q, 0) is 0 everywhere.
    sampler = llm.Sampler(SamplingParams(temperature=1.0, top_k=2, seed=1))
    logits = mx.array([[0.0, 0.0, 0.0, 5.0, 4.0, 0.0]] * 2)
    p = mx.softmax(sampler.scores(logits[0]), axis=-1)
    steps = [llm.accept_with_draft_probs(logits, [3], 1.5 * p[None], sampler, 2 * i) for i in range(200)]
    replaced = [step for step in steps if len(step) == 1]
    assert len(replaced) > 20, "or nothing is rejected"
    assert {step[0] for step in replaced} == {3, 4}, "drawn from p, which has no other token"


# The loop


def tokens_of(events):
    (done,) = [event for event in events if isinstance(event, DoneEvent)]
    return list(done.completion.token_ids)


@pytest.mark.task("3.9.4")
@pytest.mark.parametrize("outside", [VOCAB, VOCAB + 100, 2**31, -1])
def test_a_draft_ends_before_a_token_outside_the_vocabulary(llm, outside):
    model, sampling = FakeModel(), SamplingParams(max_tokens=12)
    answer = model.answer_to(b"prompt", 12)
    proposer = Scripted(6, lambda done: [answer[done], outside, 97])
    got = llm.speculative_generate(model, ByteTokenizer(), "prompt", proposer, sampling)
    assert tokens_of(got) == answer
    assert all(0 <= token < VOCAB for call in model.calls for row in call.tokens for token in row)
    assert max(call.length for call in model.calls[1:]) == 2, "what stands before it is verified"
